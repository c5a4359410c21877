"""Alerts: rules about phrases, silence and over-talk, checked on live calls."""
