"""An engine server that workers on this and other machines share: the parent of its inference processes.

`listener.EngineListener` lets workers in, and `relay.EngineRelay` passes frames between each of them and its link to an
inference process (`asr.inference.process`). What the worker knows of the server is `asr.client.link.RemoteLink`.
"""
