"""What every log line shares: how text is escaped and masked, how a terminal shows it, and how often it is repeated."""
