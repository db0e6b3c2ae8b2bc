"""The interface of a descriptor."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from ml.descriptors.common.manifest import DescriptorManifest
from ml.errors import NotFinite, WrongShape
from ml.options import option
from ml.types import CropKind, Crops, Ids, Rows

CROP_SHAPES: dict[CropKind, tuple[int, ...]] = {"grey": (170, 100), "colour": (112, 112, 3)}


@dataclass(frozen=True, eq=False)
class CellLayout:
    """Square cells over a crop, `size` pixels a side, from its top-left corner: rows x columns of them.

    cell_numbers: (dim,) the cell that each number of a descriptor belongs to, counted row by row
    """

    rows: int
    columns: int
    size: int
    cell_numbers: Ids


@dataclass(frozen=True, kw_only=True)
class Descriptor(ABC):
    """Turns crops into vectors by a fixed recipe. It learns nothing from labels.

    Options are dataclass fields, made by `option` (see `ml.options`).

    Convention:
        crops: (N, 170, 100) uint8 grey or (N, 112, 112, 3) uint8 RGB, as `crop` states; N may be 0
        returns: (N, dim) float32, finite; below 65,504 if the descriptor is costly
    """

    mirrored: bool = option(
        False,
        "describe each crop by the mean over the crop and its mirror image, so that the side that a face shows matters "
        "less; takes twice the time for the same number of values",
    )
    crop: ClassVar[CropKind]
    is_costly: ClassVar[bool] = False
    """Takes more than a millisecond a face. Callers cache its values in half precision; they are rounded to it from
    the start, so that all embedders see the same numbers."""
    manifest_type: ClassVar[type[DescriptorManifest] | None] = None
    """The manifest of the model file that the descriptor runs, which its option `manifest` names; None: it needs no
    file of the operator's."""

    @property
    def is_ready(self) -> bool:
        """Whether it can describe a face as it was built; if not, `learn` returns the options that make it ready."""
        return True

    def load(self) -> Self:
        """Read the files that it needs, so that a missing or altered one is reported now. Raises Unavailable, Corrupt.

        A descriptor without files has nothing to read.
        """
        return self

    @classmethod
    def learn(cls, crops: Crops, folder: Path, seed: int = 0, **options: Any) -> dict[str, Any]:
        """Learn the options to build it with from (N, ...) crops of any faces; write the files they name to `folder`.

        Raises WrongShape, TooFewPairs.
        """
        cls._check(crops)
        return cls._learn(crops, folder, seed, **options)

    @classmethod
    def _learn(cls, crops: Crops, folder: Path, seed: int) -> dict[str, Any]:
        """Return no options: a fixed recipe has nothing to learn."""
        return {}

    @property
    def version(self) -> str:
        """Distinguishes it from others with the same options: the hash of its model file; "" if it has none."""
        return ""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Numbers a face."""

    @abstractmethod
    def _describe(self, crops: Crops) -> Rows: ...

    @property
    def cells(self) -> CellLayout | None:
        """Where on the crop its numbers come from; None if each depends on several cells or on the whole crop."""
        return None if self.mirrored else self._cells

    @property
    def _cells(self) -> CellLayout | None:
        return None

    def describe(self, crops: Crops) -> Rows:
        """Describe N crops: (N, dim) float32. Raises WrongShape, NotFinite."""
        self._check(crops)
        rows = self._describe(crops) if len(crops) else np.empty((0, self.dim), np.float32)
        if self.mirrored and len(crops):
            rows = np.float32(0.5) * (rows + self._describe(np.ascontiguousarray(crops[:, :, ::-1])))
        if rows.shape != (len(crops), self.dim) or rows.dtype != np.float32:
            raise WrongShape("descriptors", f"({len(crops)}, {self.dim}) float32", f"{rows.shape} {rows.dtype}")
        if self.is_costly:
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
