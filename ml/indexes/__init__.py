"""Indexes: `build` one that fits the collection, `load` one that was saved, `tune` how far it should look."""

from ml.indexes._build import Device, build, load
from ml.indexes._cells import PER_CELL, SMALL, default_cells
from ml.indexes._tune import Point, choose, tune

__all__ = ["PER_CELL", "SMALL", "Device", "Point", "build", "choose", "default_cells", "load", "tune"]
