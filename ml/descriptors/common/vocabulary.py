"""The file that a Fisher vector stands on: principal axes of patches, and a mixture of them."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ml.errors import Corrupt, Unavailable

Floats = NDArray[np.float32]
NUMBERS = 128
PLACE = 2
ARRAYS = ("axes", "mean", "means", "variances", "log_weights")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Axes of root-SIFT (d, 128) with its mean (128,); Gaussians of the d projections and x, y of a patch.

    means, variances: (k, d + 2); log_weights: (k,); sha256: of the file that it was read from, hex
    """

    axes: Floats
    mean: Floats
    means: Floats
    variances: Floats
    log_weights: Floats
    sha256: str = ""

    @property
    def dim(self) -> int:
        """Numbers of a Fisher vector: one a mean and one a variance."""
        return 2 * self.means.size

    def write(self, folder: Path, metadata: dict[str, Any]) -> Path:
        """`folder/<sha256 of the file>.safetensors`, whole or not at all. facts: kept beside the numbers."""
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in ARRAYS}
        data = save(arrays, {"about": json.dumps(metadata, sort_keys=True)})
        final = folder / f"{hashlib.sha256(data).hexdigest()}.safetensors"
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{uuid4().hex}"
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(final)
        return final

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises Unavailable where it is not there, Corrupt where it is not right."""
        if not path.is_file():
            raise Unavailable(f"no vocabulary at {path}; Fisher.learn makes one from crops (docs/research/fisher.md)")
        data = path.read_bytes()
        try:
            arrays = load(data)
            vocabulary = cls(**{name: arrays[name] for name in ARRAYS}, sha256=hashlib.sha256(data).hexdigest())
            return vocabulary._checked()
        except (SafetensorError, ValueError, KeyError) as error:
            raise Corrupt(f"the vocabulary {path.name} is not right: {error}") from error

    def _checked(self) -> Self:
        """Raises ValueError."""
        k, wide = self.log_weights.size, len(self.axes) + PLACE
        wanted = {"axes": (wide - PLACE, NUMBERS), "mean": (NUMBERS,), "means": (k, wide), "variances": (k, wide)}
        for name, shape in (wanted | {"log_weights": (k,)}).items():
            tensor = getattr(self, name)
            if tensor.shape != shape or tensor.dtype != np.float32 or not np.isfinite(tensor).all():
                raise ValueError(f"{name} is not {shape} finite float32")
        if not (self.variances > 0).all():
            raise ValueError("a variance is not above 0")
        return self
