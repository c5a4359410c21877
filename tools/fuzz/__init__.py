"""Mutated input for every parser that strangers reach. `python -m tools.fuzz` runs it; `make fuzz` runs much of it."""
