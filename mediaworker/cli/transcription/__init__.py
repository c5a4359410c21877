"""The parts of `mediaworker transcribe`, and the exit codes that it has beside those of every command."""

UNREADABLE, INCOMPLETE, UNWRITTEN, INTERRUPTED = 3, 4, 5, 130
