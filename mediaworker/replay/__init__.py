"""The replay lab: it plays captures and recordings through the worker's real media path, with simulated network faults
(docs/how-to/replay.md).
"""
