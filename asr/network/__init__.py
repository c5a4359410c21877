"""An engine server that workers on this and other machines share: the side of `mediaworker engine`.

`listener.EngineListener` takes connections, and each has a `session.WorkerSession`, which passes what the worker asks
on to the server's own `asr.client.recognizer.Recognizer`. What the worker knows of the server is
`asr.client.servers.engine_connection`.
"""
