"""Choose the method that is learned on MobileFaceNet, on an inner split of draw 0."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from papers.clml.grids import LONG_UNPULLED
from papers.harness.photos import MODEL
from papers.harness.result_store import ResultMissing
from papers.harness.results import Queries
from papers.harness.run_context import Method, RunContext
from papers.harness.table_types import Computation

FIT_SECONDS = 15.0
DIMS = (64, 32)
KINDS = {"closed set": "queries", "never seen": "disjoint"}
SPHERICAL = {"ridge": 3e-3, "spherical": 1.0, "rate": 0.05, "negatives": 2000.0}
CANDIDATES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("ldml", {}),
    ("ldml", {"ridge": 3e-3}),
    ("ldml", {"rate": 0.005}),
    ("ldml", {**SPHERICAL, "spherical": 0.7, "negatives": 200.0}),
    ("ldml", SPHERICAL),
    ("clml", {"ridge": 3e-3, "k": 16}),
    ("clml", {"ridge": 3e-3, **LONG_UNPULLED, "k": 16}),
    ("clml", {**SPHERICAL, **LONG_UNPULLED, "k": 16}),
)


def candidates(dim: int) -> list[Method]:
    return [Method(name, dim, options) for name, options in CANDIDATES]


def sizes(context: RunContext) -> tuple[int, ...]:
    return DIMS[-1:] if context.scope.quick else DIMS


def choices(context: RunContext) -> list[Computation]:
    """Return the computations of the choice; none in a quick run, which takes the first candidate."""
    if context.scope.quick or not context.photos.has_model:
        return []
    return [computation for dim in DIMS for kind in KINDS.values() for computation in tried(context, dim, kind)]


def tried(context: RunContext, dim: int, kind: str) -> list[Computation]:
    """Return the computations of the candidates. kind: "queries" or "disjoint"."""
    return [context.retrieval(method, MODEL, f"inner-{kind}-0", seconds=FIT_SECONDS) for method in candidates(dim)]


def chosen(context: RunContext, dim: int, kind: str) -> Method:
    """Return the candidate with the best mAP; the first in a quick run, or if not all have results."""
    judged = not context.scope.quick and all(
        context.store.has(computation) for computation in tried(context, dim, kind)
    )
    return candidates(dim)[_best(context, dim, kind) if judged else 0]


@lru_cache(maxsize=16)
def _best(context: RunContext, dim: int, kind: str) -> int:
    return int(np.argmax([np.nanmean(Queries.of(context.result(w)).values("mAP")) for w in tried(context, dim, kind)]))


def describe_choices(context: RunContext) -> list[str]:
    """Describe the choices, such as `chosen for 32 numbers: closed set clml {"ridge": 0.003}; never seen ldml {}`

    Raises ResultMissing unless all candidates have results.
    """
    for computation in choices(context):
        if not context.store.has(computation):
            raise ResultMissing(f"{computation.name} was not computed, by which others are chosen")
    notes = []
    for dim in sizes(context):
        best = {where: chosen(context, dim, kind) for where, kind in KINDS.items()}
        parts = [f"{where} {m.name} {json.dumps(dict(m.options))}" for where, m in best.items()]
        notes.append(f"chosen for {dim} numbers: {'; '.join(parts)}")
    return notes
