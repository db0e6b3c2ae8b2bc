"""The settled labels of a collection as constraints on its searches."""
