"""`make gpu`: everything about the engine that only a GPU can show, in one run of at most ten minutes."""
