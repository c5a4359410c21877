"""The HTTP port: its server, the protection against slow and hostile peers, and the routes."""
