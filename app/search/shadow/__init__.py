"""Answer a share of searches by the challenger too, and compare the answers."""
