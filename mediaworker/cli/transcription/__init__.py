"""The parts of `mediaworker transcribe`, and its exit codes in addition to those of every command."""

UNREADABLE, INCOMPLETE, UNWRITTEN, INTERRUPTED = 3, 4, 5, 130
