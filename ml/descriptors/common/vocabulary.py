"""The vocabulary of Fisher vectors: principal axes of root-SIFT, and a Gaussian mixture of projected patches."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ml.errors import Corrupt, Unavailable
from ml.files import atomic_write, hash_bytes

Floats = NDArray[np.float32]
SIFT_DIM = 128
POSITION_DIM = 2
ARRAYS = ("axes", "mean", "means", "variances", "log_weights")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Principal axes of root-SIFT, and a mixture of k Gaussians over the d projections and x, y of a patch.

    axes: (d, 128); mean: (128,) of root-SIFT; means, variances: (k, d + 2); log_weights: (k,)
    sha256: of the file from which it was read, in hex; empty if it was not read from a file
    """

    axes: Floats
    mean: Floats
    means: Floats
    variances: Floats
    log_weights: Floats
    sha256: str = ""

    @property
    def dim(self) -> int:
        """The length of a Fisher vector: one number for each mean and each variance."""
        return 2 * self.means.size

    def write(self, folder: Path, metadata: dict[str, Any]) -> Path:
        """Write `folder/<SHA-256 of the file>.safetensors` atomically and return its path.

        metadata: values for JSON, stored in the same file
        """
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in ARRAYS}
        data = save(arrays, {"about": json.dumps(metadata, sort_keys=True)})
        final = folder / f"{hash_bytes(data)}.safetensors"
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(final) as file:
            file.write(data)
        return final

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote. Raises Unavailable if the file is missing, Corrupt if it is not a vocabulary."""
        if not path.is_file():
            raise Unavailable(f"no vocabulary at {path}; Fisher.learn fits one to crops (docs/research/fisher.md)")
        data = path.read_bytes()
        try:
            arrays = load(data)
            vocabulary = cls(**{name: arrays[name] for name in ARRAYS}, sha256=hash_bytes(data))
            return vocabulary._checked()
        except (SafetensorError, ValueError, KeyError) as error:
            raise Corrupt(f"the vocabulary {path.name} is not valid: {error}") from error

    def _checked(self) -> Self:
        """Return the vocabulary if its arrays have the right shapes and values. Raises ValueError."""
        k, wide = self.log_weights.size, len(self.axes) + POSITION_DIM
        wanted = {
            "axes": (wide - POSITION_DIM, SIFT_DIM),
            "mean": (SIFT_DIM,),
            "means": (k, wide),
            "variances": (k, wide),
        }
        for name, shape in (wanted | {"log_weights": (k,)}).items():
            tensor = getattr(self, name)
            if tensor.shape != shape or tensor.dtype != np.float32 or not np.isfinite(tensor).all():
                raise ValueError(f"{name} is not {shape} finite float32")
        if not (self.variances > 0).all():
            raise ValueError("a variance is not above 0")
        return self
