"""Group faces into people."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ml.calibration import Calibration
from ml.distances import Distance
from ml.errors import WrongShape
from ml.people_discovery.constraints import PairConstraints, apply_constraints
from ml.people_discovery.linkage import ClusterMeans
from ml.people_discovery.merging import MergedClusters, MergeRule, merge_clusters
from ml.people_discovery.stranger_levels import StrangerLevels, draw_cohort
from ml.types import Ids, Rows

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

MIN_PROBABILITY = 0.986
"""How probable it must be that two single faces show one person. Chosen on CelebA10k (docs/research/discovery.md)."""
GROUP_ALLOWANCE = 1.75
"""How much lower the limit is for two large clusters, as a logit."""
LINK_ALLOWANCE = 1.0
"""How much farther than that, as a logit, faces are linked, since the strangers of some lie farther than of others."""
COHORT_STRICTNESS = 0.75
"""How much stricter, as a logit, the first grouping is. It only serves to draw a cohort of different people."""

STAGES, STEPS_PER_STAGE = 3, 1_000
"""Of the progress: a first grouping, the levels of strangers, the grouping."""


@dataclass(frozen=True, eq=False)
class DiscoveredPeople:
    """labels: (N,) cluster numbers, in the order of the first face of each cluster
    probabilities: (C,) for each cluster the least probability at which two of its parts were merged; 1 if none were
    """

    labels: Ids
    probabilities: Floats


@dataclass(frozen=True, eq=False)
class KnownPeople:
    """What is known before the search.

    start: (N,) cluster numbers to start from, such as earlier clusters and named people; a face alone has its own
    is_named: (N,) whether the face has a name; two people with names are never merged
    constraints: pairs that are known; see `apply_constraints` for those that contradict each other
    """

    start: Ids
    is_named: Flags
    constraints: PairConstraints = field(default_factory=PairConstraints)

    @classmethod
    def nobody(cls, faces: int) -> "KnownPeople":
        """Start with each of so many faces alone."""
        return cls(np.arange(faces), np.zeros(faces, np.bool_))


def find_link_distance(calibration: Calibration, min_probability: float = MIN_PROBABILITY) -> float:
    """Return the distance up to which faces are worth linking before `discover_people`."""
    logit = _to_logit(min_probability) - GROUP_ALLOWANCE - LINK_ALLOWANCE
    return (calibration.intercept - logit) / calibration.slope


def discover_people(
    rows: Rows,
    links: Ids,
    metric: Distance,
    calibration: Calibration,
    known: KnownPeople | None = None,
    *,
    min_probability: float = MIN_PROBABILITY,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> DiscoveredPeople:
    """Group N faces into people.

    rows: (N, d) embeddings; links: (L, 2) positions of faces that are near to each other, from `find_links`. Given the
        links of new faces alone, earlier clusters stay as they are unless a new face joins them.
    min_probability: how probable it must be that two single faces show one person, 0 to 1
    progress: called before each step with the steps done and their number; it may raise an exception to stop

    Raises WrongShape.
    """
    known = known or KnownPeople.nobody(len(rows))
    if known.start.shape != (len(rows),) or known.is_named.shape != (len(rows),):
        raise WrongShape("start and is_named", f"({len(rows)},)", known.start.shape)
    if not 0 < min_probability < 1:
        raise WrongShape("min_probability", "above 0 and below 1", min_probability)
    if not len(rows):
        return DiscoveredPeople(np.empty(0, np.int64), np.empty(0))
    labels, cannot_link, _ = apply_constraints(known.start, known.constraints)
    face_logit = _to_logit(min_probability)

    def merge(levels: StrangerLevels, strictness: float, stage: int) -> MergedClusters:
        clusters = ClusterMeans.of(rows, labels, levels.levels, metric)
        is_named = np.zeros(len(clusters.counts), np.bool_)
        is_named[labels[known.is_named]] = True
        limits = face_logit + strictness, face_logit + strictness - GROUP_ALLOWANCE
        rule = MergeRule(calibration, levels.typical, *limits)
        report = _report_stage(progress, stage)
        return merge_clusters(
            clusters, labels[links], rule, cannot_link=cannot_link, is_named=is_named, progress=report
        )

    first = merge(StrangerLevels.unknown(len(rows)), COHORT_STRICTNESS, 0).owner[labels]
    cohort = draw_cohort(first, np.random.default_rng(seed))
    levels = StrangerLevels.measure(rows, cohort, first, metric, _report_stage(progress, 1))
    merged = merge(levels, 0.0, 2)
    progress(STAGES * STEPS_PER_STAGE, STAGES * STEPS_PER_STAGE)
    return _describe(labels, merged)


def _report_stage(progress: Callable[[int, int], None], stage: int) -> Callable[[int, int], None]:
    """Return what reports the progress of one stage, in steps of all; its end is the start of the next."""

    def report(done: int, total: int) -> None:
        progress(STEPS_PER_STAGE * stage + STEPS_PER_STAGE * done // (total + 1), STAGES * STEPS_PER_STAGE)

    return report


def _describe(labels: Ids, merged: MergedClusters) -> DiscoveredPeople:
    owners, first, numbers = np.unique(merged.owner[labels], return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(first), np.int64)
    rank[order] = np.arange(len(first))
    logits = merged.weakest_logits[owners[order]]
    return DiscoveredPeople(rank[numbers], 1 / (1 + np.exp(-logits)))


def _to_logit(probability: float) -> float:
    return math.log(probability / (1 - probability))
