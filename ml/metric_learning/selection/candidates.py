"""The candidates among which `auto` chooses, from cheap to expensive."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ml import registry
from ml.embedders.base import Embedder

UNCHANGED = "unchanged"
CandidateMethod = Literal["wccn", "low_rank", "ldml", "clml", "wpca"]
METHODS: tuple[CandidateMethod, ...] = ("wccn", "low_rank", "ldml", "clml", "wpca")
Base = Literal["cosine", "l2"]
CLOSED_FORM = ("wccn", "wpca")
SHRINKAGES = (0.9, 0.7, 0.5, 0.3, 0.1)
LOW_RANKS = (8, 32)
HELD_WEIGHTS = (0.1, 0.01)
MAX_HELD_AXES = 512
"""Descriptors with more numbers are not learned from at their own width, only along their leading axes."""
MAX_WHITENED_DIM = 128
FACES_PER_DIM = 4
HELD_BATCHES = {"groups": 128, "others": 128}


@dataclass(frozen=True)
class FitCandidate:
    """A way to fit.

    name: as reports show it; method: an embedder, with its options; words: what it does
    is_whitened: whether it starts from whitened or discriminant axes
    """

    name: str
    method: str
    words: str
    options: dict[str, Any] = field(default_factory=dict)
    is_whitened: bool = False

    @property
    def is_closed_form(self) -> bool:
        """Whether it is fitted at once, without a descent."""
        return self.method in CLOSED_FORM

    def build(self, seed: int, device: str) -> Embedder:
        """Build the embedder of this candidate, not yet fitted."""
        known = {option.name for option in registry.list_options("embedders", self.method)}
        shared = {name: value for name, value in (("seed", seed), ("device", device)) if name in known}
        built: Embedder = registry.build("embedders", self.method, **shared, **self.options)
        return built


def list_candidates(
    width: int, faces: int, base: Base = "cosine", dim: int = 0, methods: Sequence[str] = METHODS
) -> tuple[FitCandidate, ...]:
    """List the candidates for descriptors of this width: the unchanged descriptor, then those of these methods.

    faces: number of faces to learn from; base: how the descriptors are compared where nothing is learned
    dim: largest number of values of an embedding; 0: each candidate has its own
    """
    unchanged, *others = _iterate_candidates(width, faces, base, dim)
    return unchanged, *(candidate for candidate in others if candidate.method in methods)


def list_corrections(width: int, base: Base = "cosine", methods: Sequence[str] = METHODS) -> tuple[FitCandidate, ...]:
    """List the candidates that correct another model's embeddings of this width by a matrix, nothing else.

    The first one changes nothing. base: how the embeddings are compared
    """
    unchanged = {"shrinkage": 1.0, "axes": width, "min_pairs": 0, "unit": base == "cosine"}
    corrections = [*_iterate_normalised(width, base), *(_iterate_held(width, width) if base == "cosine" else ())]
    kept = (c for c in corrections if c.method in methods and c.method != "clml")
    return FitCandidate(UNCHANGED, "wccn", "the model that it starts from", unchanged), *kept


def _iterate_candidates(width: int, faces: int, base: Base, dim: int) -> Iterator[FitCandidate]:
    axes = dim or MAX_HELD_AXES
    if dim:
        reduced = {"shrinkage": 1.0, "axes": dim, "min_pairs": 0, "unit": base == "cosine"}
        yield FitCandidate(UNCHANGED, "wccn", f"the descriptors along their {dim} leading directions", reduced)
    else:
        yield FitCandidate(UNCHANGED, base, "the descriptors as they are")
    yield from _iterate_normalised(axes, base)
    if base == "cosine":
        yield from _iterate_held(width, axes)
    yield from _iterate_whitened(min(dim or MAX_WHITENED_DIM, width, max(2, faces // FACES_PER_DIM)))


def _iterate_normalised(axes: int, base: Base) -> Iterator[FitCandidate]:
    for shrinkage in SHRINKAGES:
        options = {"shrinkage": shrinkage, "axes": axes, "unit": base == "cosine"}
        yield FitCandidate(f"wccn {shrinkage:g}", "wccn", "less weight where photos of one person differ", options)


def _iterate_held(width: int, axes: int) -> Iterator[FitCandidate]:
    """Yield the fits that start at the cosine of the descriptors and are held to it."""
    for rank in LOW_RANKS:
        yield FitCandidate(
            f"low rank {rank}", "low_rank", f"a correction in {rank} directions", {"rank": rank, "axes": axes}
        )
    start = {"dim": min(width, axes), "axes": axes if width > axes else 0, "start": "pca"}
    held = start | HELD_BATCHES | {"spherical": 1.0, "shrink": 0.0, "operating_weight": 1.0}
    for weight in HELD_WEIGHTS:
        options = held | {"steps": 150, "proximal_weight": weight}
        yield FitCandidate(f"ldml held {weight:g}", "ldml", "one linear map that stays near the descriptors", options)
    local = {
        "steps": 100,
        "first_steps": 50,
        "k": 4,
        "proximal_weight": min(HELD_WEIGHTS),
        "anchor": 0.1,
        "rescale": False,
    }
    yield FitCandidate(
        "clml held", "clml", "four local maps that stay near the descriptors", held | local | {"pull": 1e-2}
    )


def _iterate_whitened(dim: int) -> Iterator[FitCandidate]:
    """Yield the fits that start from whitened or discriminant axes, which suit weak descriptors."""
    yield FitCandidate("wpca", "wpca", f"{dim} whitened principal axes", {"dim": dim, "unit": True}, True)
    yield FitCandidate("ldml", "ldml", f"one linear map to {dim} numbers, from discriminant axes", {"dim": dim}, True)
    local = {"dim": dim, "k": 8, "anchor": 0.1, "rescale": False, "first_steps": 200, "steps": 100}
    yield FitCandidate("clml", "clml", f"eight local maps to {dim} numbers", local, True)
