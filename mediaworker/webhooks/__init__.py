"""Webhooks: signed posts of events of calls, and of the ends of jobs, to configured or requested URLs."""
