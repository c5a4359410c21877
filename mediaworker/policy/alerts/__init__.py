"""Rules over what is said, not said, and said at the same time."""
