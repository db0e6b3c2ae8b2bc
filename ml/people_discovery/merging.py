"""Merge clusters along the links of a graph, the most probable first, by average linkage.

Two clusters that are each other's most probable partner are merged, until no pair is probable enough. For average
linkage this gives the clusters of the agglomerative algorithm (Murtagh 1983, reciprocal nearest neighbours), and each
round handles all such pairs at once. A single near pair cannot join two people, because all pairs of the two clusters
count. Among clusters that are all but equal, the order of the distances is not kept: see EQUAL_SHARE.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml.calibration import Calibration
from ml.people_discovery.linkage import ClusterMeans
from ml.types import Ids

SCRAMBLE = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""The multipliers of the hash of SplitMix64 (Steele, Lea and Flood 2014)."""
EQUAL_SHARE = 0.1
"""Of the distance up to which two large clusters are merged. Such near ones are pictures of one moment, whose order
tells nothing; merged in the order of their distances, each would join the largest cluster in a round of its own."""

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class MergeRule:
    """How probable it must be that two clusters show one person.

    The logit of that probability is the calibration's at the mean distance of the clusters, corrected by how near their
    own strangers lie (see `stranger_levels`). The limit falls as the clusters grow, because a mean over many pairs
    tells more than a single pair.

    typical_level: the level of a typical face; face_logit: the limit for two single faces; group_logit: for two large
    clusters, at most `face_logit`
    """

    calibration: Calibration
    typical_level: float
    face_logit: float
    group_logit: float

    def logits(self, clusters: ClusterMeans, pairs: Ids) -> Floats:
        """Return the logit of the probability that each of (P, 2) pairs of clusters shows one person: (P,)."""
        return self._score(clusters, pairs, clusters.distances(pairs))

    def ranks(self, clusters: ClusterMeans, pairs: Ids) -> Floats:
        """Return (2, P): the logits, and by what partners are chosen: the same, but +inf for all near equals."""
        distances = clusters.distances(pairs)
        logits = self._score(clusters, pairs, distances)
        limit = (self.calibration.intercept - self.group_logit) / self.calibration.slope
        are_equal = clusters.metric.is_euclidean & (distances <= EQUAL_SHARE * limit)
        return np.stack([logits, np.where(are_equal, np.inf, logits)])

    def _score(self, clusters: ClusterMeans, pairs: Ids, distances: Floats) -> Floats:
        levels = (clusters.levels[pairs[:, 0]] + clusters.levels[pairs[:, 1]]) / 2
        logits: Floats = self.calibration.intercept - self.calibration.slope * (
            distances - (levels - self.typical_level)
        )
        return logits

    def limits(self, clusters: ClusterMeans, pairs: Ids) -> Floats:
        """Return the smallest logit at which each of (P, 2) pairs of clusters is merged: (P,)."""
        single = (1 / clusters.counts[pairs[:, 0]] + 1 / clusters.counts[pairs[:, 1]]) / 2
        limits: Floats = self.group_logit + (self.face_logit - self.group_logit) * single
        return limits


class MergedClusters(NamedTuple):
    """owner: (C,) the new cluster of each; a merged cluster has the smallest number of its parts
    weakest_logits: (C,) the smallest logit at which parts of a cluster were merged, +inf where nothing was merged
    """

    owner: Ids
    weakest_logits: Floats


def merge_clusters(
    clusters: ClusterMeans,
    links: Ids,
    rule: MergeRule,
    *,
    cannot_link: Ids,
    is_named: Flags,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> MergedClusters:
    """Merge linked clusters while the rule lets any be merged. Changes `clusters`.

    links: (L, 2) pairs of cluster numbers that may be merged; cannot_link: (P, 2) pairs that never lie in one cluster
    is_named: (C,) which clusters are people with a name, of whom no two are merged
    progress: called before each round with the links that are settled and their number; it may raise an exception to
        stop
    """
    owner, weakest, is_named = np.arange(len(is_named)), np.full(len(is_named), np.inf), is_named.copy()
    links = _normalise(links, len(owner))
    ranks, total = rule.ranks(clusters, links), len(links)
    while True:
        progress(total - len(links), total)
        kept = (ranks[0] >= rule.group_logit) & ~is_named[links].all(axis=1)
        kept &= ~_is_forbidden(links, cannot_link, len(owner))
        links, ranks = links[kept], ranks[:, kept]
        near = np.flatnonzero(ranks[0] >= rule.limits(clusters, links))
        if not len(near):
            return MergedClusters(owner, weakest)
        best = _find_best(links[near], ranks[1, near], len(owner))
        is_mutual = (best[links[near]] == np.arange(len(near))[:, None]).all(axis=1)
        siblings = _pair_siblings(links[near], ranks[1, near], best, is_mutual)
        sibling_ranks = rule.ranks(clusters, siblings)
        allowed = np.isposinf(sibling_ranks[1]) & (sibling_ranks[0] >= rule.limits(clusters, siblings))
        allowed &= ~is_named[siblings].all(axis=1) & ~_is_forbidden(siblings, cannot_link, len(owner))
        merged = np.concatenate([links[near][is_mutual], siblings[allowed]])
        logits = np.concatenate([ranks[0, near][is_mutual], sibling_ranks[0, allowed]])
        clusters.merge(merged)
        first, second = merged.T
        weakest[first] = np.minimum(np.minimum(weakest[first], weakest[second]), logits)
        is_named[first] |= is_named[second]
        target = np.arange(len(owner))
        target[second] = first
        owner, cannot_link = target[owner], target[cannot_link]
        has_changed = np.zeros(len(owner), np.bool_)
        has_changed[merged] = True
        touched = has_changed[links].any(axis=1)
        changed = _normalise(target[links[touched]], len(owner))
        links = np.concatenate([links[~touched], changed])
        ranks = np.concatenate([ranks[:, ~touched], rule.ranks(clusters, changed)], axis=1)


def _find_best(links: Ids, ranks: Floats, count: int) -> Ids:
    """Return the best of (L, 2) links of each of `count` clusters, -1 where it has none: (C,).

    Of equal ones, chance decides, so that a share of them is found at once: by their numbers it would be one.
    """
    order = np.lexsort((_scramble(links), -ranks))
    numbers, first = np.unique(links[order].ravel(), return_index=True)
    best = np.full(count, -1, np.int64)
    best[numbers] = order[first // 2]
    return best


def _pair_siblings(links: Ids, ranks: Floats, best: Ids, is_mutual: Flags) -> Ids:
    """Pair clusters that are near equals of the same third one, and that no mutual link merges: (P, 2).

    Otherwise a large cluster that is the best partner of many would take in one of them a round.
    """
    is_free = best >= 0
    is_free[links[is_mutual]] = False
    clusters = np.flatnonzero(is_free)
    clusters = clusters[np.isposinf(ranks[best[clusters]])]
    partner = links[best[clusters]].sum(axis=1) - clusters
    order = np.argsort(partner, kind="stable")
    clusters, partner = clusters[order], partner[order]
    starts = np.searchsorted(partner, partner)
    is_first = ((np.arange(len(partner)) - starts) % 2 == 0)[:-1] & (partner[:-1] == partner[1:])
    first = np.flatnonzero(is_first)
    return np.sort(np.stack([clusters[first], clusters[first + 1]], axis=1), axis=1)


def _scramble(links: Ids) -> NDArray[np.uint64]:
    """Return a number for each of (L, 2) links, the same each time, in no order of the clusters' numbers: (L,)."""
    mixed = links[:, 0].astype(np.uint64) << np.uint64(32) | links[:, 1].astype(np.uint64)
    for multiplier in SCRAMBLE:
        mixed = (mixed ^ (mixed >> np.uint64(31))) * multiplier
    return mixed ^ (mixed >> np.uint64(31))


def _normalise(links: Ids, count: int) -> Ids:
    """Return the different links between different clusters, the smaller number first. count: number of clusters"""
    keys = np.unique(_key(links[links[:, 0] != links[:, 1]], count))
    return np.stack([keys // count, keys % count], axis=1)


def _is_forbidden(links: Ids, cannot_link: Ids, count: int) -> Flags:
    if not len(cannot_link):
        return np.zeros(len(links), np.bool_)
    return np.isin(_key(links, count), _key(cannot_link, count))


def _key(pairs: Ids, count: int) -> Ids:
    """Number each of (P, 2) pairs, whatever its order: (P,)."""
    keys: Ids = pairs.min(axis=1) * count + pairs.max(axis=1)
    return keys
