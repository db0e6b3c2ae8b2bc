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
    """A grid of rows x columns square cells over a crop, from its top-left corner. size: side of a cell in pixels

    cell_numbers: (dim,) the cell to which each number of a descriptor belongs, counted row by row
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
        "describe each crop by the mean of the descriptors of the crop and its mirror image, so that it matters less "
        "which side a face shows; takes twice the time",
    )
    crop: ClassVar[CropKind]
    is_costly: ClassVar[bool] = False
    """Whether it takes more than a millisecond per face. Callers cache the values in half precision, so `describe`
    rounds them likewise: all embedders then see the same numbers, cached or not."""
    is_external: ClassVar[bool] = False
    """Whether its vectors are imported: it has no `crop`, and describes nothing."""
    manifest_type: ClassVar[type[DescriptorManifest] | None] = None
    """Class of the manifest that the option `manifest` names; None if it runs no model file of the operator."""

    @property
    def is_ready(self) -> bool:
        """Whether it can describe faces. If not, `learn` returns the options that make it ready."""
        return True

    def load(self) -> Self:
        """Read the files that it needs, if any, so that a missing or altered file is reported early.

        Raises Unavailable, Corrupt.
        """
        return self

    @classmethod
    def learn(cls, crops: Crops, folder: Path, seed: int = 0, **options: Any) -> dict[str, Any]:
        """Learn options from (N, ...) crops of any faces, and write the files that the options name to `folder`.

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
        """The hash of its model file, which tells apart descriptors with the same options; empty without a file."""
        return ""

    @property
    @abstractmethod
    def dim(self) -> int:
        """The length of a descriptor."""

    @abstractmethod
    def _describe(self, crops: Crops) -> Rows: ...

    @property
    def cells(self) -> CellLayout | None:
        """The cells from which its numbers come; None if a number depends on several cells or on the whole crop."""
        return None if self.mirrored else self._cells

    @property
    def _cells(self) -> CellLayout | None:
        return None

    def describe(self, crops: Crops) -> Rows:
        """Describe crops, (N, ...) as `crop` states: (N, dim) float32. Raises WrongShape, NotFinite."""
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
