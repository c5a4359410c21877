"""Posts to the URLs of others: events of calls, and the ends of jobs."""
