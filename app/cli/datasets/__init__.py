"""Commands that measure methods on data sets outside the service, and export embeddings."""
