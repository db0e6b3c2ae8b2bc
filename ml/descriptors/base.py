"""What every descriptor promises."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ml.errors import NotFinite, WrongShape
from ml.types import CropKind, Crops, Ids, Rows

CROP_SHAPES: dict[CropKind, tuple[int, ...]] = {"grey": (170, 100), "colour": (112, 112, 3)}


@dataclass(frozen=True, eq=False)
class Cells:
    """Squares of a crop, `size` pixels a side, from its top-left corner: rows x columns of them.

    of: (dim,) which square each number of a descriptor tells of, counted row after row
    """

    rows: int
    columns: int
    size: int
    of: Ids


@dataclass(frozen=True)
class Descriptor(ABC):
    """Turns crops into rows of numbers by a fixed recipe; learns nothing from labels.

    mirrored: the mean of what is said of a crop and of its mirror image, so that both have the same numbers: twice the
    time, the same size, and it matters less which side a face shows

    Convention:
        crops: (N, 170, 100) uint8 grey or (N, 112, 112, 3) uint8 RGB, as `crop` says; N may be 0
        returns: (N, dim) float32, finite; of a dear one below 65,504
    """

    mirrored: bool = field(default=False, kw_only=True)
    crop: ClassVar[CropKind]
    dear: ClassVar[bool] = False
    """Costs more than a millisecond a face: whoever has described a face keeps it, in half precision, to which it is
    rounded from the start so that all who embed it see the same numbers."""

    @property
    def ready(self) -> bool:
        """Whether it can describe a face as it was built; else `learn` tells with which options more it can."""
        return True

    @classmethod
    def learn(cls, crops: Crops, folder: Path, seed: int = 0, **options: Any) -> dict[str, Any]:
        """Options to build it with, learned from crops of any faces; the files that they name are written to `folder`.

        Raises WrongShape, TooFewPairs.
        """
        cls._check(crops)
        return cls._learn(crops, folder, seed, **options)

    @classmethod
    def _learn(cls, crops: Crops, folder: Path, seed: int) -> dict[str, Any]:
        """A recipe that is fixed from the start has nothing to learn."""
        return {}

    @property
    def version(self) -> str:
        """Tells its numbers from those of another with the same options: of what file it is made."""
        return ""

    @property
    @abstractmethod
    def dim(self) -> int: ...

    @abstractmethod
    def _describe(self, crops: Crops) -> Rows: ...

    @property
    def cells(self) -> Cells | None:
        """Where on the crop its numbers come from; None where each tells of several places or of the whole of it."""
        return None if self.mirrored else self._cells

    @property
    def _cells(self) -> Cells | None:
        return None

    def describe(self, crops: Crops) -> Rows:
        """One row a crop. Raises WrongShape, NotFinite."""
        self._check(crops)
        rows = self._describe(crops) if len(crops) else np.empty((0, self.dim), np.float32)
        if self.mirrored and len(crops):
            rows = np.float32(0.5) * (rows + self._describe(np.ascontiguousarray(crops[:, :, ::-1])))
        if rows.shape != (len(crops), self.dim) or rows.dtype != np.float32:
            raise WrongShape("descriptors", f"({len(crops)}, {self.dim}) float32", f"{rows.shape} {rows.dtype}")
        if self.dear:
            with np.errstate(over="ignore"):
                rows = rows.astype(np.float16).astype(np.float32)
        if not np.isfinite(rows).all():
            raise NotFinite("a descriptor")
        return rows

    @classmethod
    def _check(cls, crops: Crops) -> None:
        shape = CROP_SHAPES[cls.crop]
        if crops.shape[1:] != shape or crops.dtype != np.uint8:
            raise WrongShape("crops", f"(N, {', '.join(map(str, shape))}) uint8", f"{crops.shape} {crops.dtype}")
