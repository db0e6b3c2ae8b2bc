"""A trial of open-set identification: a random gallery, and searches of it.

Distances are squared Euclidean distances between rows of unit length. A score is the person distance of the nearest
person under a rule; a search names that person if the score is at most a threshold.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ml.types import Ids, Rows

Scores = NDArray[np.float64]
BLOCK_ROWS = 400
COHORT, NEAREST_OF_COHORT = 1000, 10
NO_FACE_DISTANCE = 99.0


@dataclass(frozen=True)
class TrialSizes:
    """The sizes of a trial. everybody: whether all people except the strangers are enrolled"""

    people: int = 500
    queries: int = 300
    min_photos: int = 3
    max_enrolled: int = 20
    strangers: int = 2500
    distractors: int = 1000
    searches: int = 2000
    everybody: bool = False


@dataclass(frozen=True, eq=False)
class SearchSet:
    """Searches. rows: (S, d); hidden: (S,) person whose faces are left out of the gallery, None: nobody"""

    rows: Rows
    hidden: Ids | None = None


@dataclass(frozen=True, eq=False)
class TrialGallery:
    """A gallery. rows: (N, d), sorted by owner; owners: (N,) numbered from 0"""

    rows: Rows
    owners: Ids

    @cached_property
    def counts(self) -> Ids:
        return np.bincount(self.owners)

    @cached_property
    def starts(self) -> Ids:
        return np.searchsorted(self.owners, np.arange(len(self.counts)))

    @cached_property
    def means(self) -> Rows:
        sums: Rows = np.add.reduceat(self.rows, self.starts, axis=0)
        return sums / self.counts[:, None]

    @cached_property
    def within_variance(self) -> float:
        """The pooled unbiased mean squared distance of embeddings to their person's mean."""
        freedom = int((self.counts - 1).sum())
        squared = float(((self.rows - self.means[self.owners]) ** 2).sum())
        return squared / freedom if freedom else 0.0


@dataclass(frozen=True, eq=False)
class OpenSetTrial:
    """A trial. query_people: (Q,) person of each query; cohort: strangers of another set, not searched for"""

    gallery: TrialGallery
    queries: SearchSet
    query_people: Ids
    strangers: SearchSet
    distractors: SearchSet
    left_out: SearchSet
    cohort: Rows


def draw_trial(rows: Rows, people: Ids, distractors: Rows, plan: TrialSizes, seed: int) -> OpenSetTrial:
    """Draw a trial. rows: (N, d) of (N,) people, numbered from 0; distractors: (M, d), strangers to all of them

    The leave-one-out searches use one face of each enrolled person, then second ones, up to `plan.searches`.
    """
    rng = np.random.default_rng(seed)
    counts = np.bincount(people)
    able = np.flatnonzero(counts >= plan.min_photos)
    chosen = rng.permutation(able)[: plan.people]
    searched = np.isin(chosen, rng.permutation(chosen)[: plan.queries])
    others = rng.permutation(np.setdiff1d(np.flatnonzero(counts), chosen))
    strangers, rest = others[: plan.strangers], others[plan.strangers :]
    enrolled: list[Ids] = []
    queries: list[int] = []
    for person, is_searched in zip(chosen.tolist(), searched.tolist(), strict=True):
        photos = rng.permutation(np.flatnonzero(people == person))
        if is_searched:
            queries.append(int(photos[0]))
            photos = photos[1:]
        enrolled.append(photos if plan.everybody else photos[: plan.max_enrolled])
    if plan.everybody:
        enrolled += [np.flatnonzero(people == person) for person in rest.tolist()]
    gallery = TrialGallery(
        rows[np.concatenate(enrolled)], np.repeat(np.arange(len(enrolled)), [len(e) for e in enrolled])
    )
    one_each = [int(rng.choice(np.flatnonzero(people == person))) for person in strangers.tolist()]
    order = rng.permutation(len(distractors))
    indices = one_face_each_first(gallery.owners, rng)[: plan.searches]
    return OpenSetTrial(
        gallery, SearchSet(rows[queries]), np.flatnonzero(searched), SearchSet(rows[one_each]),
        SearchSet(distractors[order[: plan.distractors]]), SearchSet(gallery.rows[indices], gallery.owners[indices]),
        distractors[order[plan.distractors : plan.distractors + COHORT]],
    )  # fmt: skip


def one_face_each_first(owners: Ids, rng: np.random.Generator) -> Ids:
    """Return positions in random order: one of each owner, then a second one, and so on."""
    order = rng.permutation(len(owners))
    by_owner = order[np.argsort(owners[order], kind="stable")]
    starts = np.searchsorted(owners[by_owner], owners[by_owner])
    turn = np.empty(len(owners), np.int64)
    turn[by_owner] = np.arange(len(owners)) - starts
    chosen: Ids = order[np.argsort(turn[order], kind="stable")]
    return chosen


@dataclass(frozen=True, eq=False)
class PersonDistances:
    """(S, P) distances to each person, +inf for the hidden one.

    nearest: to the nearest face; second: mean over the two nearest faces; template: to the mean embedding; unit: to the
        mean embedding scaled to unit length; average: mean over all faces
    """

    nearest: Scores
    second: Scores
    template: Scores
    unit: Scores
    average: Scores


def person_distances(gallery: TrialGallery, searches: SearchSet) -> Iterator[PersonDistances]:
    """Compute the distances, a block of searches at a time."""
    norms = np.linalg.norm(gallery.means, axis=1)
    several = np.flatnonzero(gallery.counts > 1)
    for at in range(0, len(searches.rows), BLOCK_ROWS):
        rows = searches.rows[at : at + BLOCK_ROWS]
        faces = 2 - 2 * (rows @ gallery.rows.T)
        product = rows @ gallery.means.T
        nearest = np.minimum.reduceat(faces, gallery.starts, axis=1)
        second = nearest.copy()
        for person in several.tolist():
            own = faces[:, gallery.starts[person] : gallery.starts[person] + gallery.counts[person]]
            second[:, person] = np.partition(own, 1, axis=1)[:, :2].mean(1)
        parts = [nearest, second, 1 + norms**2 - 2 * product, 2 - 2 * product / norms, 2 - 2 * product]
        distances = [part.astype(np.float64) for part in parts]
        if searches.hidden is not None:
            for part in distances:
                part[np.arange(len(rows)), searches.hidden[at : at + BLOCK_ROWS]] = np.inf
        yield PersonDistances(distances[0], distances[1], distances[2], distances[3], distances[4])


def nearest_people(base: Scores, count: int) -> tuple[Ids, Scores]:
    """Return (S,) the nearest person and (S, count) the distances of the nearest people, from (S, P) distances."""
    count = min(count, base.shape[1] - 1)
    indices = np.argpartition(base, count - 1, axis=1)[:, :count]
    values = np.take_along_axis(base, indices, 1)
    order = np.argsort(values, axis=1, kind="stable")
    return np.take_along_axis(indices, order, 1)[:, 0], np.take_along_axis(values, order, 1)
