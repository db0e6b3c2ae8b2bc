"""Past the papers."""
