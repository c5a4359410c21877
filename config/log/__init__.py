"""The handling of log lines: masked and escaped text, the format for terminals, and the limit on repeated lines."""
