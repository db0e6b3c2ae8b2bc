"""Limits on what requests may do at once."""
