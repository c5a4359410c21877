"""Cues: a long text in pieces that can be read on the screen."""
