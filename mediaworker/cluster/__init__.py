"""A cluster of workers on several machines, which share their calls and jobs through NATS JetStream (`cluster.nats`).

A worker commits its events to its own store, as without a cluster. `outbox` publishes them into a replicated stream.
`mirror`, at every worker, reads the events of all workers from the stream into a second store. `events` serves that
store to subscribers, and this worker's own events without waiting for the stream. Nothing in this package is imported
without `cluster.nats`.
"""
