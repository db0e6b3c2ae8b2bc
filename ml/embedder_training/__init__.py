"""Train an embedder on labelled faces: choose what it learns from, fit it, measure and calibrate it on held-out people.

Arrays only: `workers/training` reads them from the database and compares the result with the models that serve.
"""
