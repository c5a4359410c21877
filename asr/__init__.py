"""Speech recognition: utterances in, hypotheses out, in lanes.

One utterance goes this way:

1. `client.recognizer.Recognizer`, in the media process, keeps its audio and its newest request until they are answered
   (`client.send_queue.PendingUtterance`), and `client.placement.Placement` chooses one of the engine servers.
2. `client.engine_server.EngineServer` takes its next message from the queue of that server, and sends it over a
   `client.link.EngineLink`: to a child process (`client.local_pool`), or over TCP to one elsewhere
   (`client.server_pool`), whose parent relays it (`network.relay`).
3. `inference.process` reads it, and `inference.links.ServedLink` says which worker it is from.
4. `inference.inference.Inference` has the engine's side of it (`inference.utterances.ServedUtterance`), and
   orders its request among the others with `scheduling.scheduler.Scheduler`.
5. `engines.interface.Engine` does one step for the most urgent requests, on what it holds of each: its own session.
6. `text` cleans the engine's answer, and a `utterance.Hypothesis` goes back over the link to the recognizer, which
   delivers it if it is still wanted.

Importing `asr.client.recognizer` loads no engine. `errors` draws the tree of errors.
"""
