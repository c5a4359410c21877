"""What a process shows to those who run it: its log, and its metrics as Prometheus reads them. Imports no part."""
