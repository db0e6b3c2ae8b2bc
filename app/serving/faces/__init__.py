"""The names of enrolled faces in memory."""
