"""Transcripts of calls and files, in the formats that they can be asked for."""
