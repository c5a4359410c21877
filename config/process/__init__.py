"""Processes and tasks: children and the messages between them, and tasks that last as long as their process."""
