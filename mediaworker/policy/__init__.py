"""Rules over the events of calls: redaction of private parts, alerts, and the joining of finals to turns."""
