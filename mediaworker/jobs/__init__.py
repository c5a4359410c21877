"""File jobs that survive the worker: each finished stretch is on disk, and a job goes on with its first unfinished."""
