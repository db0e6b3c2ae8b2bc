"""Tables of 002: Coupled Projection multi-task Metric Learning (CP-mtML)."""
