"""Events: their schema, the store that keeps them across restarts, and the hub that sends them to subscribers."""
