"""The processes that serve, a worker and an engine server: how they are put together, started, reloaded and drained."""
