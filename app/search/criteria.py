"""The criteria of a search: one task, or a weighted mix of several tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from app.db.immediate import require_session
from app.db.tables import BUILT_IN_TASK
from app.errors import Conflict
from app.publishing.pointers import filter_enabled_tasks
from app.search import enrolled_faces
from app.search.decision import (
    OUTDATED,
    PARTIAL,
    UNCHECKED,
    AcceptanceThreshold,
    make_pair_threshold,
    make_person_threshold,
)
from app.search.params import SearchParams
from app.serving.deployments import SearchEffort, ServedModel
from app.serving.faces.face_table import FaceTable
from app.serving.scores import Scores
from ml.distances import EUCLIDEAN
from ml.indexes import choose_operating_point
from ml.indexes.base import Neighbours
from ml.types import Ids, Rows

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Criterion:
    """A task with the model that serves it. share: its weight, 0 to 1; scale: divides its distances in a mix"""

    served: ServedModel
    share: float = 1.0
    scale: float = 1.0

    @property
    def factor(self) -> float:
        """The factor by which its distances are multiplied in a mix."""
        return self.share / self.scale


@dataclass(frozen=True, eq=False)
class Criteria:
    """The criteria of one request. The distance of a mix is the sum of share x distance / scale over its tasks."""

    tasks: tuple[Criterion, ...]

    @classmethod
    def of(cls, shares: dict[ServedModel, float]) -> Self:
        """Make the criteria from each model's share. Raises Conflict if a mix has a task without calibration."""
        if len(shares) == 1:
            return cls(tuple(Criterion(served) for served in shares))
        return cls(tuple(Criterion(served, share, _find_scale(served)) for served, share in shares.items()))

    @property
    def first(self) -> ServedModel:
        return self.tasks[0].served

    @property
    def is_mix(self) -> bool:
        return len(self.tasks) > 1

    @property
    def names_people(self) -> bool:
        """Whether a match says who somebody is: faces of two people may be the same by another criterion."""
        return not self.is_mix and self.first.task == BUILT_IN_TASK

    @property
    def is_compensated(self) -> bool:
        """Whether embeddings of one of the tasks are corrected for their source."""
        return any(c.served.loaded_index.compensation.has_corrections for c in self.tasks)

    @property
    def shadow_share(self) -> float:
        """The share of such searches that the challenger answers too: those in one task, by its champion."""
        pointers = self.first.deployment.pointers
        if self.is_mix or pointers["challenger"] is None or pointers["champion"] != self.first.model.id:
            return 0.0
        return self.first.deployment.shadow_share

    @property
    def collection(self) -> str:
        return self.first.deployment.collection

    @property
    def faces(self) -> FaceTable | None:
        """The collection's faces as the task that is ahead has them; None if the database must be read."""
        tables = [c.served.faces for c in self.tasks]
        known = [table for table in tables if table is not None]
        return max(known, key=lambda table: table.change) if len(known) == len(tables) else None

    @property
    def model_ids(self) -> str:
        return ",".join(dict.fromkeys(c.served.model.id for c in self.tasks))

    @property
    def index_generation(self) -> str:
        return ",".join(c.served.index_generation for c in self.tasks)

    @cached_property
    def scores(self) -> Scores:
        """The scores of a single task. The distances of a mix are not calibrated."""
        if not self.is_mix:
            return self.first.scores
        return Scores(next((m for m in (c.served.index.metric for c in self.tasks) if not m.is_euclidean), EUCLIDEAN))


@dataclass(frozen=True, eq=False)
class MixedNeighbours(Neighbours):
    """The result of a search by several tasks: the union of each task's nearest faces.

    by_task: (Q, T, n) each task's own distance; cells_probed: (T,) in each task's index
    bound: (Q,) a face in no task's list is at least this far, so that the order below it is final (the threshold
        algorithm of Fagin, Lotem and Naor 2001); +inf if the lists have every face of the probed cells
    """

    by_task: Floats
    bound: Floats
    cells_probed: tuple[int, ...]


def check_tasks_enabled(session: Session | None, tasks: Sequence[str]) -> None:
    """Raises Conflict if one of the tasks is switched off, DatabaseNeeded."""
    if list(tasks) == [BUILT_IN_TASK]:
        return
    disabled = sorted(set(tasks) - set(filter_enabled_tasks(require_session(session), tasks)))
    if disabled:
        raise Conflict(f"the task {', '.join(disabled)} is off; an administrator can switch it on", code="TaskDisabled")


def choose_threshold(criteria: Criteria, params: SearchParams) -> AcceptanceThreshold:
    """Return the threshold that was requested, by default that of the false positive identification rate.

    Of tasks that name nobody, nothing is accepted or rejected by default.

    Raises Conflict if one was requested and nothing is calibrated.
    """
    if criteria.is_mix:
        return AcceptanceThreshold(None)
    if params.fmr is not None or params.threshold is not None:
        return make_pair_threshold(criteria.scores, params.fmr, params.threshold)
    if not criteria.names_people:
        return AcceptanceThreshold(None, rule=criteria.scores.rule)
    served = criteria.first
    return make_person_threshold(criteria.scores, params.fpir, served.usable_face_count, _find_doubt(served, params))


def choose_effort(served: ServedModel, params: SearchParams) -> SearchEffort:
    """Choose the cells to probe and the candidates: as requested, from the measured curve, or as the index does."""
    scores = served.scores
    if params.target_recall is None and params.max_latency_ms is None:
        is_exact = params.m is not None and params.m >= served.index.cells
        measured = None if is_exact or served.index.default_candidates is None else scores.candidates
        return SearchEffort(params.m, params.candidates or measured)
    if not scores.curve:
        return SearchEffort(served.index.cells if params.target_recall is not None else None)
    point = choose_operating_point(
        scores.curve, target_recall=params.target_recall, max_latency_ms=params.max_latency_ms
    )
    return SearchEffort(point.m, point.candidates)


def _find_doubt(served: ServedModel, params: SearchParams) -> str | None:
    """Return why what was measured does not hold for a search, or may not."""
    validity = served.validity
    if validity.is_outdated or validity.is_unchecked:
        return OUTDATED if validity.is_outdated else UNCHECKED
    return PARTIAL if _is_partial(served, params) else None


def _is_partial(served: ServedModel, params: SearchParams) -> bool:
    """Whether a search looks at fewer cells or candidates than those by which thresholds are measured."""
    effort, index = choose_effort(served, params), served.index
    if effort.m is not None and effort.m < min(index.default_m, index.cells):
        return True
    candidates = served.scores.candidates or index.default_candidates
    return effort.candidates is not None and candidates is not None and effort.candidates < candidates


def search_mix(
    session: Session,
    criteria: Criteria,
    queries: Sequence[Rows],
    k: int,
    efforts: Sequence[SearchEffort],
    allowed: Ids | None,
) -> MixedNeighbours:
    """Search by several tasks, over the union of the k nearest faces of each.

    queries: each task's (Q, dim) rows; efforts: of the search in each task's index; allowed: face pks, None all
    Raises Busy, WrongShape, NotFinite.
    """
    searches = zip(criteria.tasks, queries, efforts, strict=True)
    lists = [c.served.search(rows, k, effort, allowed) for c, rows, effort in searches]
    unions = [_rank_union(session, criteria, lists, queries, q) for q in range(len(queries[0]))]
    width = max((len(ids) for ids, _, _ in unions), default=0)
    ids = np.full((len(unions), width), -1, np.int64)
    distances = np.full((len(unions), width), np.inf, np.float32)
    by_task = np.full((len(unions), len(lists), width), np.inf, np.float32)
    for q, (pks, total, of_tasks) in enumerate(unions):
        ids[q, : len(pks)], distances[q, : len(pks)], by_task[q, :, : len(pks)] = pks, total, of_tasks
    farthest = np.array([listed.distances[:, -1] for listed in lists], np.float64)
    for own, criterion in zip(farthest, criteria.tasks, strict=True):
        if k >= (criterion.served.face_count if allowed is None else len(allowed)):
            own[:] = np.inf  # the list holds every face
    bound = np.asarray(np.array([c.factor for c in criteria.tasks]) @ farthest, np.float32)
    fraction = np.sum([listed.fraction for listed in lists], axis=0)
    probed = tuple(listed.m for listed in lists)
    return MixedNeighbours(ids, distances, fraction, max(probed), by_task, bound, probed)


def _rank_union(
    session: Session, criteria: Criteria, lists: Sequence[Neighbours], queries: Sequence[Rows], query: int
) -> tuple[Ids, Floats, Floats]:
    """Return for one query the face pks by rising distance of the mix, these distances, and the (T, n) ones by task.

    A face that is new or was deleted may lack an embedding for one of the tasks; it is left out.
    """
    union = np.unique(np.concatenate([listed.ids[query] for listed in lists]))
    union = union[union >= 0]
    by_task = np.full((len(lists), len(union)), np.nan, np.float32)
    for own, criterion, listed, rows in zip(by_task, criteria.tasks, lists, queries, strict=True):
        is_listed = listed.ids[query] >= 0
        own[np.searchsorted(union, listed.ids[query][is_listed])] = listed.distances[query][is_listed]
        missing = np.isnan(own)
        own[missing] = _compute_stored_distances(session, criterion.served, rows[query], union[missing])
    factors = np.array([c.factor for c in criteria.tasks])
    total = (factors @ by_task.astype(np.float64)).astype(np.float32)
    order = np.lexsort((union, total))
    order = order[~np.isnan(total[order])]
    return union[order], total[order], by_task[:, order]


def _compute_stored_distances(session: Session, served: ServedModel, query: Rows, pks: Ids) -> Floats:
    """Return the (n,) distances from the (dim,) query to the stored embeddings of these faces; NaN if there is none."""
    known = enrolled_faces.read_embeddings(session, served, pks.tolist())
    distances = np.full(len(pks), np.nan, np.float32)
    is_known = np.isin(pks, list(known))
    if is_known.any():
        rows = np.stack([known[pk] for pk in pks[is_known].tolist()])
        distances[is_known] = served.index.metric.distances(query[None], rows)[0]
    return distances


def _find_scale(served: ServedModel) -> float:
    """Return the spread of this gallery's impostor distances. Raises Conflict if they were not measured."""
    calibration = served.scores.calibration
    spread = calibration.impostors.spread if calibration is not None else 0.0
    if spread <= 0:
        raise Conflict(
            f"the distances of the task {served.task!r} cannot be weighed against those of others yet: its model is "
            "not calibrated here. Enrol more faces, and subjects with two or more faces, or search by one task",
            code="NotCalibrated",
        )
    return spread
