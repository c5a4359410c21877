"""An engine server that workers on this and other machines share: the parent of its inference processes.

`listener.EngineListener` authenticates workers, and `relay.EngineRelay` passes frames between each worker's connection
and its link to an inference process (`asr.inference.process`). The worker's side is `asr.client.link.RemoteLink`.
"""
