"""The common parts of all commands: argument parsing, the options for TLS, and output for people."""
