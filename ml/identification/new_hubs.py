"""Notice people who were enrolled after the thresholds were measured, and by whom these do not hold any more.

A threshold is measured in a gallery as it is. A person who is enrolled later, and is near to very many others, is named
for strangers far more often than the measured rate says: see `ml.identification.hubs`. People of a poorer camera, near
only to each other, are named for strangers like themselves.
"""

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ml.calibration.rate_intervals import clopper_pearson
from ml.distances import Distance
from ml.identification.person_distance import DecisionRule, Shortlist
from ml.identification.searches import (
    Flags,
    GalleryPeople,
    SearchableIndex,
    SearchOutcomes,
    TemplateCache,
    list_people,
)
from ml.identification.templates import group_template_distances
from ml.types import Ids, Rows

Floats = NDArray[np.float64]

MAX_ADDED_SHARE = 0.5
"""Of the strangers that a rate allows to be named, so many may be named as people who are enrolled later."""
EXTRA_STRANGERS = 2
"""And so many more, which chance or a photo of an enrolled person under another name explains.

A face without a name may match as many strangers as the rate allows altogether, and so many more: where it is the only
one, half of them are expected.
"""
FACES_PER_BATCH, PROBES_PER_BATCH = 2_048, 256


@dataclass(frozen=True)
class Level:
    """The thresholds at one rate of strangers named, 0 to 1.

    person_distance: of people with a name, by this rule; face_distance: of faces without one
    high: the upper end of the interval of the rate; None if the threshold does not come from searches
    named_share: of the enrolled people, how many were named when it was measured: see `find_named_share`
    """

    fpir: float
    person_distance: float
    face_distance: float
    rule: DecisionRule
    high: float | None = None
    named_share: float = 0.0


@dataclass(frozen=True, eq=False)
class StrangerProbes:
    """Searches for people of the gallery without their own faces, which stand for strangers.

    rows: (S, d) their faces; owners: (S,) their people
    near: their shortlists, without themselves; template: (S, P) distances to the templates of these
    is_rival: (S, P) whether one of these counts as the next person
    """

    rows: Rows
    owners: Ids
    near: Shortlist
    template: Floats
    is_rival: Flags

    @classmethod
    def draw(
        cls, index: SearchableIndex, people: GalleryPeople, owners: Ids, limit: int, is_probe: Flags | None = None
    ) -> Self:
        """Search for one face of each person with a name and each distractor, at most `limit`.

        people: of the gallery as it was measured; owners: (n,) how each of its faces' owners is known later
        is_probe: (n,) which faces may be searched for, None: all
        """
        probes = people.sample_rivals(limit, is_probe)
        rows, own = index.rows(people.ids[probes]), people.owners[probes]
        near, _ = list_people(index, people, rows, own, people.ids[probes])
        templates = TemplateCache(index, people)
        batches = [slice(start, start + PROBES_PER_BATCH) for start in range(0, len(rows), PROBES_PER_BATCH)]
        template = [templates.distances(rows[batch], near.people[batch], own[batch]) for batch in batches]
        owner_of = np.zeros(len(people.is_named), np.int64)
        owner_of[people.owners] = owners
        known = Shortlist(np.where(near.people >= 0, owner_of[near.people], -1), near.nearest)
        is_rival = people.is_rival[near.people] & (near.people >= 0)
        return cls(rows, owners[probes], known, np.concatenate([np.empty_like(near.nearest[:0]), *template]), is_rival)

    def find_next_people(self, rule: DecisionRule) -> tuple[Ids, Floats, Floats]:
        """Return (S,) the nearest people, how far these are, and how far the next ones are, +inf if there is none."""
        base = np.where(self.is_rival, rule.base_distances(self.near.nearest, self.template), np.inf)
        order, every = np.argsort(base, axis=1, kind="stable"), np.arange(len(base))
        first, second = order[:, 0], order[:, 1]
        return self.near.people[every, first], base[every, first], base[every, second]


@dataclass(frozen=True, eq=False)
class NewHubs:
    """What the faces that were enrolled since a measurement do to the searches for strangers.

    passing: fpir -> person -> which probes are named as that person and were not before. An odd number is that of a
        face without a name, which they match
    """

    probes: StrangerProbes
    passing: dict[float, dict[int, Ids]] = field(default_factory=dict)

    def add(self, rows: Rows, people: Ids, metric: Distance, levels: Sequence[Level]) -> "NewHubs":
        """Return what further people do, or the same people with other faces.

        rows: (n, d) all faces of these people; people: (n,) even numbers with a name, odd ones without
        """
        passing = {level.fpir: dict(self.passing.get(level.fpir, {})) for level in levels}
        order = np.argsort(people, kind="stable")
        numbers, starts = np.unique(people[order], return_index=True)
        for start in range(0, len(numbers), FACES_PER_BATCH):
            batch = slice(start, start + FACES_PER_BATCH)
            stop = starts[batch.stop] if batch.stop < len(starts) else len(order)
            own_rows, own_starts = rows[order[starts[start] : stop]], starts[batch] - starts[start]
            nearest = _find_nearest_faces(metric, self.probes.rows, own_rows, own_starts)
            nearest[self.probes.owners[:, None] == numbers[None, batch]] = np.inf
            template = group_template_distances(metric, self.probes.rows, own_rows, own_starts)
            for level in levels:
                passes = self._find_passing(numbers[batch], nearest, template, level)
                for number, column in zip(numbers[batch].tolist(), passes.T, strict=True):
                    passing[level.fpir].pop(number, None)
                    if column.any():
                        passing[level.fpir][number] = np.flatnonzero(column)
        return replace(self, passing=passing)

    def without(self, people: AbstractSet[int]) -> "NewHubs":
        """Return what the others do."""
        passing = {
            fpir: {person: probes for person, probes in of_rate.items() if person not in people}
            for fpir, of_rate in self.passing.items()
        }
        return replace(self, passing=passing) if people else self

    def find(self, *, together: bool) -> frozenset[int]:
        """Return the people for whom too many strangers are taken, and the faces without a name.

        together: also those who are few strangers' next person each, if all of them are too many strangers'
        """
        hubs = set[int]()
        for fpir, passing in self.passing.items():
            allowed = fpir * len(self.probes.rows)
            limit, face_limit = EXTRA_STRANGERS + MAX_ADDED_SHARE * allowed, EXTRA_STRANGERS + allowed
            people = {number: probes for number, probes in passing.items() if number % 2 == 0}
            is_crowd = together and people and len(np.unique(np.concatenate(list(people.values())))) > limit
            hubs |= {number for number, probes in people.items() if is_crowd or len(probes) > limit}
            hubs |= {number for number, probes in passing.items() if number % 2 and len(probes) > face_limit}
        return frozenset(hubs)

    def _find_passing(self, people: Ids, nearest: Floats, template: Floats, level: Level) -> Flags:
        """Return (S, P) whether a probe is named as a person and was not before, or matches a face without a name.

        Searches compare only the people on their shortlist. nearest, template: (S, P) distances
        """
        rule, probes = level.rule, self.probes
        first, first_base, second_base = probes.find_next_people(rule)
        first_base, second_base = first_base[:, None], second_base[:, None]
        base, is_first = rule.base_distances(nearest, template), first[:, None] == people
        following = np.where(is_first, second_base, first_base)
        is_listed = nearest <= probes.near.nearest[:, -1:]
        is_named = is_listed & (base <= following) & (_subtract_lead(base, following, rule) <= level.person_distance)
        was_named = is_first & (_subtract_lead(first_base, second_base, rule) <= level.person_distance)
        return np.where(people % 2 == 0, is_named & ~was_named, nearest <= level.face_distance)


def _subtract_lead(base: Floats, following: Floats, rule: DecisionRule) -> Floats:
    """Return the person distances of people who are the nearest. following: base distances of the next ones"""
    with np.errstate(invalid="ignore"):  # inf - inf, of a probe's own faces where there is nobody else
        lead = np.where(np.isfinite(following) & np.isfinite(base), following - base, 0.0)
    person_distances: Floats = base - rule.margin_weight * lead
    return person_distances


def _find_nearest_faces(metric: Distance, queries: Rows, rows: Rows, starts: Ids) -> Floats:
    """Return the (Q, P) distances of the nearest faces of P people. rows, starts: see `group_template_distances`"""
    nearest = np.full((len(queries), len(starts)), np.inf)
    person_of = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(rows)))
    for start in range(0, len(rows), FACES_PER_BATCH):
        people, firsts = np.unique(person_of[start : start + FACES_PER_BATCH], return_index=True)
        distances = metric.distances(queries, rows[start : start + FACES_PER_BATCH]).astype(np.float64)
        nearest[:, people] = np.minimum(nearest[:, people], np.minimum.reduceat(distances, firsts, axis=1))
    return nearest


def find_named_often(outcomes: SearchOutcomes, levels: Sequence[Level]) -> set[int]:
    """Return the owners in the gallery as whom too many of the searches for strangers are named by themselves."""
    hubs = set[int]()
    for level in levels:
        limit = EXTRA_STRANGERS + (1 + MAX_ADDED_SHARE) * level.fpir * len(outcomes.positions)
        named = Counter(outcomes.nearest[outcomes.stranger <= level.person_distance].tolist())
        hubs |= {owner for owner, count in named.items() if count > limit}
    return hubs


def may_exceed_rates(newcomers: int, measured_people: int, levels: Sequence[Level]) -> bool:
    """Return whether so many new people could exceed a stated rate if each of them were named for a stranger."""
    return any(_exceeds_rate(1.0, newcomers, measured_people, level) for level in levels)


def surely_exceed_rates(outcomes: SearchOutcomes, levels: Sequence[Level]) -> bool:
    """Return whether strangers like all who are enrolled are surely named more often than is stated.

    Who was named when the threshold was measured is named now: another photo of that person has another name.

    outcomes: searches for one face of each without their own faces
    """
    return any(
        clopper_pearson(named, len(outcomes.positions))[0] > max(level.high, level.named_share)
        for level in levels
        if level.high is not None and (named := int((outcomes.stranger <= level.person_distance).sum()))
    )


def exceed_rates(outcomes: SearchOutcomes, new_shares: Floats, people: int, levels: Sequence[Level]) -> bool:
    """Return whether strangers like all who are enrolled are named more often than is stated, as far as is known.

    Of few new faces little is sure, and a new measurement costs little. Everybody weighs alike, and so do the faces of
    a person; strangers like those that were measured are named at the rate that was asked for.

    outcomes: searches for new faces without their people's own; new_shares: (P,) of the faces of each owner, how many
        are new, 0 to 1; people: how many owners have a name
    """
    _, owners, counts = np.unique(outcomes.owners, return_inverse=True, return_counts=True)
    weights = new_shares[outcomes.owners] / counts[owners]
    weights /= weights.sum() or 1.0
    newcomers = float(new_shares.sum())
    return any(
        _exceeds_rate(
            float(weights[outcomes.stranger <= level.person_distance].sum()), newcomers, people - newcomers, level
        )
        for level in levels
    )


def _exceeds_rate(named_share: float, newcomers: float, measured_people: float, level: Level) -> bool:
    """named_share: of strangers like the newcomers, those who are named"""
    share = newcomers / max(1, newcomers + measured_people)
    if level.high is None:
        return False
    return share * named_share + (1 - share) * min(level.fpir, level.high) > level.high
