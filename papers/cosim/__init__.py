"""Tables of 000: Collaborative Similarity Metric Learning (CoSiM)."""
