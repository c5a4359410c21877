"""Speech recognition: utterances in, hypotheses out, in lanes.

The walk of one utterance: `client.Recognizer` (media process, asyncio; its books are `ledger.Ledger`) → `messages` over
a socket → `process` (the shell) → `inference.Inference` (orders requests with `scheduler.Scheduler`, drives an
`engine.Engine`) → `text` cleans what the engine said → `Hypothesis` back to the client. Importing
`asr.client.recognizer` loads no engine.

Errors:
    messages.FrameError   the other process wrote what is no message; the connection is closed
    engine.EngineError    the engine gave up on one utterance; its final carries the reason
"""
