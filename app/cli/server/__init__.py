"""`likeness serve`, and the commands that run its parts alone."""
