"""The face recognition library: from photos to embeddings, and what is computed from them. Arrays and files only."""
