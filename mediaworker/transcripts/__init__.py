"""Transcripts of calls and files, in every format that a client may request."""
