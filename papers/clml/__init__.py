"""Tables of 003: Coordinated Local Metric Learning (CLML)."""
