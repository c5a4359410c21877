"""The output of a process for its operators: its log, and its metrics in Prometheus's format. Imports no other part."""
