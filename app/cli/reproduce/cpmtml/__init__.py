"""002, CP-mtML."""
