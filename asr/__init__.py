"""Speech recognition: utterances in, hypotheses out, in lanes.

The walk of one utterance: `client.recognizer.Recognizer` (media process, asyncio; its books are
`client.outstanding.OutstandingWork`) → `messages` over a socket (`client.link_shell`; with `network` between the two
where the engine is elsewhere) → `inference.process` (the shell) → `inference.inference.Inference` (orders requests with
`scheduling.scheduler.Scheduler`, drives an `engines.interface.Engine`) → `text` cleans what the engine said →
`Hypothesis` back to the recognizer. Importing `asr.client.recognizer` loads no engine.

Errors:
    config.framing.FrameError   the other process wrote bytes that are no message; the connection is closed
    engines.interface.EngineError  the engine gave up on one utterance; its final carries the reason
"""
