"""Subtitles: what was said as cues that can be read, and as SubRip and WebVTT."""
