"""Redaction: masks card numbers, matches of patterns and keyed digits before an event is stored or sent."""
