"""The routes that follow OpenAI's API for audio."""
