"""Addresses and networks: how they are read and written, and which of them may connect."""
