"""The engine `openai`: any server of OpenAI's transcription route (`/v1/audio/transcriptions`), vLLM among them.

`engine.RemoteEngine` decides what is asked, again or not any more; `client.Client` has the connections; `wire` writes
requests and reads answers.
"""
