"""The routes of the worker, one module per resource."""
