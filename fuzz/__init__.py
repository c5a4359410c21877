"""Mutated input for every parser that strangers reach. `python -m fuzz` runs it; `make fuzz` runs much of it."""
