"""The engine `openai`: any server of OpenAI's transcription route (`/v1/audio/transcriptions`), vLLM among them.

`engine.RemoteEngine` decides what is sent, and what is sent again; `client.TranscriptionClient` has the connections;
`wire` writes requests and reads answers.
"""
