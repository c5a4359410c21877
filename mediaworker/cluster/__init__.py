"""Workers on several machines that know each other's calls, through NATS JetStream (`cluster.nats`).

A worker commits its events as it does alone. `outbox` publishes them into a replicated stream, from which `mirror` at
every worker reads the events of all into a store of its own; `events` shows that store, and this worker's own events
without waiting for the stream. Nothing here is imported without `cluster.nats`.
"""
