"""Faces to embeddings: arrays and files only; no web, no database, no settings."""
