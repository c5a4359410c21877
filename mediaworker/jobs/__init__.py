"""File jobs that survive a restart: each finished segment is on disk, and a job continues with the first unfinished."""
