"""What the commands share: their arguments, the options for TLS, and what they print for a person."""
