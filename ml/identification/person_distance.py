"""The decision rule: the distance of a face to a person, by which open-set decisions are made."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ml.errors import Corrupt, WrongShape
from ml.types import Ids

Floats = NDArray[np.float64]
SHORTLIST_PEOPLE = 10
"""People compared in full, from the nearest on. A decision needs the two nearest; the rest guard against a person whose
faces are near only on average."""


@dataclass(frozen=True)
class DecisionRule:
    """Scores the people on a search's shortlist. Smaller means more alike, in the units of the model's distance.

    The base distance of a person is (1 - template_weight) * nearest + template_weight * template: `nearest` is the
    distance of the query to the nearest of the person's faces, `template` that to the mean of their embeddings (see
    `ml.identification.templates`).
    The person distance is base - margin_weight * lead, where the lead is how much nearer this person is than the
    nearest other one (negative for everybody but the first). Where there is nobody else the lead is 0.

    template_weight: 0 to 1; margin_weight: 0 or more. Both 0: the distance of the nearest face alone.
    """

    template_weight: float = 2 / 3
    margin_weight: float = 0.75

    def base_distances(self, nearest: Floats, template: Floats) -> Floats:
        """Compute base distances (..., P) from the distances of nearest faces and of templates, (..., P) each."""
        with np.errstate(invalid="ignore"):  # inf - inf where the shortlist has an empty entry
            base: Floats = (1 - self.template_weight) * nearest + self.template_weight * template
        return np.where(np.isnan(base), np.inf, base)

    def person_distances(self, base: Floats, is_rival: NDArray[np.bool_]) -> Floats:
        """Compute person distances (..., P) from base distances (..., P). Empty entries are +inf and stay so.

        is_rival: (..., P) whether a person counts as the next one for others. A face without a name does not, because
            it may show the same person. Raises WrongShape.
        """
        if base.shape != is_rival.shape:
            raise WrongShape("is_rival", str(base.shape), is_rival.shape)
        if not base.shape[-1] or not self.margin_weight:
            return base
        rivals = np.where(is_rival, base, np.inf)
        order = np.sort(rivals, axis=-1)
        first, second = order[..., :1], order[..., 1:2] if base.shape[-1] > 1 else np.full_like(order[..., :1], np.inf)
        is_first = is_rival & (np.arange(base.shape[-1]) == rivals.argmin(-1)[..., None])
        next_best = np.where(is_first, second, first)
        with np.errstate(invalid="ignore"):
            lead = np.where(np.isfinite(next_best) & np.isfinite(base), next_best - base, 0.0)
        result: Floats = base - self.margin_weight * lead
        return result

    def compute_person_distances(
        self,
        nearest: Sequence[float],
        template: Sequence[float],
        are_rivals: Sequence[bool],
        may_lead: Sequence[bool],
    ) -> list[float]:
        """Compute the person distances of one search, bit for bit as `base_distances` and `person_distances` do.

        For the few people of a shortlist, arrays would take three times as long.
        nearest, template: distances of each person; are_rivals: see `person_distances`; may_lead: False for those whose
            lead is 0 if they are the first
        """
        own, common, weight = 1 - self.template_weight, self.template_weight, self.margin_weight
        base = [own * a + common * b for a, b in zip(nearest, template, strict=True)]
        rivals = sorted([(distance, position) for position, distance in enumerate(base) if are_rivals[position]])
        if not rivals or not weight:
            return base
        first, nearest_rival = rivals[0]
        second = rivals[1][0] if len(rivals) > 1 else None
        return [
            distance if next_best is None else distance - weight * (next_best - distance)
            for position, distance in enumerate(base)
            for next_best in (first if position != nearest_rival else second if may_lead[position] else None,)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the rule as values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> Self:
        """Restore what `to_dict` returned. Raises Corrupt."""
        try:
            return cls(float(kept["template_weight"]), float(kept["margin_weight"]))
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"this is not a decision rule: {error}") from error


NEAREST_FACE = DecisionRule(0.0, 0.0)


@dataclass(frozen=True, eq=False)
class Shortlist:
    """The nearest people of Q searches, in the order of their nearest faces.

    people: (Q, P) int64 numbers of people, -1 for empty entries; nearest: (Q, P) distances, +inf for empty entries
    """

    people: Ids
    nearest: Floats

    def add(self, person: int, nearest: Floats) -> "Shortlist":
        """Return the nearest of these and of another person. nearest: (Q,) the distances of that one"""
        people = np.insert(self.people, 0, person, axis=1)
        distances = np.insert(self.nearest, 0, nearest, axis=1)
        order = np.argsort(distances, axis=1, kind="stable")[:, : self.people.shape[1]]
        return Shortlist(np.take_along_axis(people, order, 1), np.take_along_axis(distances, order, 1))


def shortlist(owners: Ids, distances: NDArray[np.float32], size: int = SHORTLIST_PEOPLE) -> Shortlist:
    """Return the first `size` different people of each search.

    owners: (Q, k) person of each face found, -1 for faces to leave out; distances: (Q, k), rising along each row
    """
    people = np.full((len(owners), size), -1, np.int64)
    nearest = np.full((len(owners), size), np.inf)
    for query, (row, row_distances) in enumerate(zip(owners, distances, strict=True)):
        _, first = np.unique(row, return_index=True)
        first = np.sort(first[row[first] >= 0])[:size]
        people[query, : len(first)], nearest[query, : len(first)] = row[first], row_distances[first]
    return Shortlist(people, nearest)


def find_nearest_people(
    near: Shortlist, template: Floats, is_rival: NDArray[np.bool_], rule: DecisionRule
) -> tuple[Floats, Ids]:
    """Return the (Q,) person distances of the nearest people, +inf if there is nobody, and (Q,) who they are.

    template: (Q, P) distances to the templates of the shortlists
    is_rival: (owners,) who counts as a person: all but nameless faces (`GalleryPeople.is_rival`)
    """
    counts = is_rival[near.people] & (near.people >= 0)
    base = rule.base_distances(near.nearest, template)
    scored = np.where(counts, rule.person_distances(base, counts), np.inf)
    query, first = np.arange(len(scored)), scored.argmin(1)
    return scored[query, first], near.people[query, first]
