"""Engine servers as the recognizer sees them: processes of this machine, or `mediaworker engine` elsewhere."""
