"""Subtitles: a long text is split into cues that can be read on a screen."""
