"""Tables of 001: The Tale of Two Manifolds."""
