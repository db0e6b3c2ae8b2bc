"""001, two manifolds."""
