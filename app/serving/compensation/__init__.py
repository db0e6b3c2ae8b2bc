"""Compensate a deployment for the sources of its faces."""
