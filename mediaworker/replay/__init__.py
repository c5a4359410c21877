"""The replay lab: captures and recordings through the real path, with a network's faults (docs/how-to/replay.md)."""
