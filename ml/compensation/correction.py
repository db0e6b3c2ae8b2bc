"""Move the embeddings of each source to where those of the reference source lie."""

import io
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ml.compensation.guess import Discriminant
from ml.errors import Corrupt
from ml.types import Rows

NO_SOURCE = ""
"""Stands for faces without a source, which are a source of their own."""
Sources = NDArray[np.str_]
"""(N,) the source of each face, NO_SOURCE for faces without one."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SourceCorrection:
    """Maps a row x of one source to (x - mean) @ spread + the mean of the reference source.

    mean: (d,) of the source; spread: (d, d), None for the identity; faces: the number of faces it was learned from
    shift: the squared distance between the means over the spread of the reference source, 0 if it is all chance
    degradation: what simulates the source, a name of `DEGRADATIONS`; None: learned from the source's faces alone
    """

    mean: Floats
    spread: Floats | None
    faces: int
    shift: float
    degradation: str | None = None


@dataclass(frozen=True, eq=False)
class SourceCompensation:
    """The corrections of all sources but the reference, whose rows stay as they are.

    reference: the source whose rows stay as they are
    has_unit_length: whether rows are scaled to unit length afterwards
    discriminants: of the sources that can be recognised in a face that states none

    Convention:
        rows: (N, d) embeddings; sources: (N,). Rows of a source without a correction stay as they are.
        returns: (N, d) float32
    """

    reference: str
    reference_mean: Floats
    has_unit_length: bool
    corrections: Mapping[str, SourceCorrection]
    discriminants: Mapping[str, Discriminant] = field(default_factory=dict)

    def guess(self, rows: Rows) -> Sources:
        """Return the (N,) source that each of (N, d) rows is taken for, NO_SOURCE where none is recognised."""
        names = [NO_SOURCE, *self.discriminants]
        leads = [np.zeros(len(rows)), *(one.lead(rows) for one in self.discriminants.values())]
        guessed: Sources = np.array(names, np.str_)[np.argmax(leads, axis=0)]
        return guessed

    def apply(self, rows: Rows, sources: Sources) -> Rows:
        """Correct the rows of each source."""
        corrected = np.array(rows, np.float32)
        for source in set(np.unique(sources).tolist()) & self.corrections.keys():
            own = sources == source
            corrected[own] = self._correct(rows[own], self.corrections[source])
        return corrected

    def keep(self, sources: Iterable[str]) -> Self:
        """Return the compensation with the corrections of these sources only."""
        chosen = set(sources)
        return replace(
            self,
            corrections={source: one for source, one in self.corrections.items() if source in chosen},
            discriminants={source: one for source, one in self.discriminants.items() if source in chosen},
        )

    def _correct(self, rows: Rows, correction: SourceCorrection) -> Rows:
        centred = rows.astype(np.float64) - correction.mean
        if correction.spread is not None:
            centred = centred @ correction.spread
        moved = centred + self.reference_mean
        if self.has_unit_length:
            moved /= np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return moved.astype(np.float32)

    def to_bytes(self) -> bytes:
        """Return the compensation as an NPZ file."""
        names = list(self.corrections)
        arrays: dict[str, NDArray[np.generic]] = {
            "names": np.array([self.reference, *names]),
            "has_unit_length": np.array(self.has_unit_length),
            "means": np.stack([self.reference_mean, *(self.corrections[name].mean for name in names)]),
            "faces": np.array([self.corrections[name].faces for name in names], np.int64),
            "shifts": np.array([self.corrections[name].shift for name in names], np.float64),
            "degradations": np.array([self.corrections[name].degradation or "" for name in names], np.str_),
        }
        for number, name in enumerate(names):
            spread = self.corrections[name].spread
            if spread is not None:
                arrays[f"spread{number}"] = spread
            if name in self.discriminants:
                discriminant = self.discriminants[name]
                limits = [discriminant.limit, discriminant.recognised]
                arrays[f"discriminant{number}"] = np.append(discriminant.weights, limits)
        file = io.BytesIO()
        np.savez(file, **arrays)  # type: ignore[arg-type]
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote, in this version or before sources were simulated or guessed. Raises Corrupt."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                return cls._from_arrays(dict(file))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise Corrupt(f"the source compensation cannot be read: {error}") from error

    @classmethod
    def _from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        reference, *names = arrays["names"].tolist()
        reference_mean, *means = arrays["means"]
        degradations = arrays["degradations"].tolist() if "degradations" in arrays else [""] * len(names)
        corrections = {
            name: SourceCorrection(
                means[number],
                arrays.get(f"spread{number}"),
                int(arrays["faces"][number]),
                float(arrays["shifts"][number]),
                degradations[number] or None,
            )
            for number, name in enumerate(names)
        }
        kept = {name: arrays[f"discriminant{i}"] for i, name in enumerate(names) if f"discriminant{i}" in arrays}
        discriminants = {
            name: Discriminant(numbers[:-2], float(numbers[-2]), float(numbers[-1])) for name, numbers in kept.items()
        }
        return cls(reference, reference_mean, bool(arrays["has_unit_length"]), corrections, discriminants)
