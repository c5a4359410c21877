"""Events for who has no WebSocket: each is posted to a URL, in order within its call, until it has been taken."""
