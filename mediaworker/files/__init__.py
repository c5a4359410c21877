"""Transcription of files: each is decoded and cut at silence in a child process, and recognised in the batch lane.

file → child: PyAV → the source's timeline → VAD → segments of speech → recogniser → segments of text
"""
