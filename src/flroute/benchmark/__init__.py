"""``flroute bench``: a device against the host, on a table of ops, an op of the user's, or a whole model."""
