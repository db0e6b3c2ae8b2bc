"""What is learned on MobileFaceNet's numbers: chosen on an inner split of draw 0, and then frozen."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from papers.clml.grids import FREE
from papers.harness.lab_fits import Lab, Method
from papers.harness.photos import MODEL
from papers.harness.result_store import ResultMissing
from papers.harness.results import Queries
from papers.harness.table_types import Work

SECONDS = 15.0
SIZES = (64, 32)
KINDS = {"closed set": "queries", "never seen": "disjoint"}
SPHERICAL = {"ridge": 3e-3, "spherical": 1.0, "rate": 0.05, "negatives": 2000.0}
CANDIDATES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("ldml", {}),
    ("ldml", {"ridge": 3e-3}),
    ("ldml", {"rate": 0.005}),
    ("ldml", {**SPHERICAL, "spherical": 0.7, "negatives": 200.0}),
    ("ldml", SPHERICAL),
    ("clml", {"ridge": 3e-3, "k": 16}),
    ("clml", {"ridge": 3e-3, **FREE, "k": 16}),
    ("clml", {**SPHERICAL, **FREE, "k": 16}),
)


def candidates(dim: int) -> list[Method]:
    return [Method(name, dim, options) for name, options in CANDIDATES]


def sizes(lab: Lab) -> tuple[int, ...]:
    return SIZES[-1:] if lab.scope.quick else SIZES


def choices(lab: Lab) -> list[Work]:
    """None in a quick look, which takes the first candidate."""
    if lab.scope.quick or not lab.photos.has_model:
        return []
    return [work for dim in SIZES for kind in KINDS.values() for work in tried(lab, dim, kind)]


def tried(lab: Lab, dim: int, kind: str) -> list[Work]:
    """kind: "queries" or "disjoint"."""
    return [lab.retrieval(method, MODEL, f"inner-{kind}-0", seconds=SECONDS) for method in candidates(dim)]


def chosen(lab: Lab, dim: int, kind: str) -> Method:
    """The candidate of the best mAP; the first in a quick look, or where not all of them are judged."""
    judged = not lab.scope.quick and all(lab.store.has(work) for work in tried(lab, dim, kind))
    return candidates(dim)[_best(lab, dim, kind) if judged else 0]


@lru_cache(maxsize=16)
def _best(lab: Lab, dim: int, kind: str) -> int:
    return int(np.argmax([np.nanmean(Queries.of(lab.result(w)).values("mAP")) for w in tried(lab, dim, kind)]))


def describe_choices(lab: Lab) -> list[str]:
    """`chosen for 32 numbers: closed set clml {"ridge": 0.003}; never seen ldml {}`

    Raises NotThere before all candidates are judged.
    """
    for work in choices(lab):
        if not lab.store.has(work):
            raise ResultMissing(f"{work.name} was not computed, by which others are chosen")
    notes = []
    for dim in sizes(lab):
        best = {where: chosen(lab, dim, kind) for where, kind in KINDS.items()}
        parts = [f"{where} {m.name} {json.dumps(dict(m.options))}" for where, m in best.items()]
        notes.append(f"chosen for {dim} numbers: {'; '.join(parts)}")
    return notes
