"""How many words of a text are wrong. Pure."""
