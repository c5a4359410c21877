"""HTTP: routes, who may use them, and the event stream."""
