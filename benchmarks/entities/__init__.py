"""Numbers, names and addresses: how often engines write them wrong, as text and as a value."""
