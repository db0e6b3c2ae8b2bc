"""How an open set is decided by person distances: FNIR at FPIR, and what the gallery's own threshold comes to."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml import indexes
from ml.distances import Distance
from ml.errors import TooFewPairs, WrongShape
from ml.evaluation.identification import Probes, fnir
from ml.evaluation.intervals import Interval, bootstrap_rate
from ml.evaluation.protocols import Protocol
from ml.identification.decision_rule import DecisionRule, shortlist
from ml.identification.open_set import OpenSetCalibration
from ml.identification.searches import FACES_PER_SEARCH, GalleryPeople, search_gallery
from ml.identification.stranger_searches import StrangerSearches
from ml.identification.templates import PersonTemplate, template_distances
from ml.indexes.base import Index
from ml.types import Ids, Rows

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

FPIRS = (0.01, 0.1)
MAX_SEARCHES = 3000


@dataclass(frozen=True, eq=False)
class OpenSetOutcomes:
    """One gallery, searched for people of it and for strangers.

    people: (Q,) whose the probes are; is_stranger: (Q,) not enrolled; is_right: (Q,) the own person is nearest
    distances: (Q,) person distance of the nearest person, +inf where nobody with a name is
    calibration: how the gallery's own people score as strangers; None where nobody could search
    """

    people: Ids
    is_stranger: Flags
    is_right: Flags
    distances: Floats
    gallery_faces: int
    calibration: OpenSetCalibration | None


def search_open_set(embeddings: Rows, protocol: Protocol, metric: Distance) -> OpenSetOutcomes:
    """Search a protocol's gallery as the service does, by the default rule.

    embeddings: (N, d), one row a photo of the protocol. Probes of people without a number are left out. Raises
    WrongShape where there is no gallery.
    """
    if not len(protocol.gallery):
        raise WrongShape("gallery", "one face or more", 0)
    ids = np.sort(protocol.gallery)
    index = indexes.build(ids, embeddings[ids], metric)
    people = GalleryPeople.from_rows(ids, protocol.people[ids], np.zeros(len(ids), np.bool_))
    rule = DecisionRule()
    queries = protocol.queries[protocol.people[protocol.queries] >= 0]
    owners, distances = _find_people(index, people, embeddings, ids, embeddings[queries], rule)
    numbers = np.full(len(people.is_named), -1, np.int64)
    numbers[people.owners] = protocol.people[ids]
    query_people = protocol.people[queries]
    is_right = (owners >= 0) & (numbers[owners] == query_people)
    is_stranger = ~np.isin(query_people, protocol.people[ids])
    calibration = _calibrate(index, people, rule)
    return OpenSetOutcomes(query_people, is_stranger, is_right, distances, len(ids), calibration)


def _find_people(
    index: Index, people: GalleryPeople, embeddings: Rows, ids: Ids, queries: Rows, rule: DecisionRule
) -> tuple[Ids, Floats]:
    """(Q,) the nearest person with a name, -1 where there is none, and (Q,) the person distance."""
    neighbours = index.search(queries, min(len(ids), FACES_PER_SEARCH))
    owners = np.where(neighbours.ids >= 0, people.owners[np.searchsorted(ids, np.maximum(neighbours.ids, ids[0]))], -1)
    near = shortlist(owners, neighbours.distances)
    known = {
        owner: PersonTemplate.from_rows(embeddings[people.ids[people.faces_of(owner)]])
        for owner in np.unique(near.people[near.people >= 0]).tolist()
    }
    query, rank = np.nonzero(near.people >= 0)
    template = np.full(near.people.shape, np.inf)
    templates = [known[owner] for owner in near.people[query, rank].tolist()]
    template[query, rank] = template_distances(index.metric, queries[query], templates)
    is_rival = people.is_rival[near.people] & (near.people >= 0)
    base = rule.base_distances(near.nearest, template)
    scored = np.where(is_rival, rule.person_distances(base, is_rival), np.inf)
    row, first = np.arange(len(queries)), scored.argmin(1)
    distances = scored[row, first]
    return np.where(np.isfinite(distances), near.people[row, first], -1), distances


def _calibrate(index: Index, people: GalleryPeople, rule: DecisionRule) -> OpenSetCalibration | None:
    faces = people.sample(people.is_named, MAX_SEARCHES, np.random.default_rng(0))
    outcomes = search_gallery(index, people, faces, rule)
    try:
        searches = StrangerSearches.from_distances("leave-one-out", outcomes.stranger, outcomes.owners, len(people.ids))
    except TooFewPairs:
        return None
    return OpenSetCalibration(rule, (searches,))


def summarise_open_set(draws: Sequence[OpenSetOutcomes]) -> dict[str, Any] | None:
    """All draws together, for JSON; rates 0 to 1 with 95 % intervals over people. None without a probe of each kind.

    fnir: by FPIR (as text), at the threshold at which so many of the strangers who searched are named. decided: at the
    threshold that the gallery gives itself for this rate: the FPIR and FNIR that come of it, and in how many draws it
    had enough evidence; null where it had in none.
    """
    if not any((~d.is_stranger).any() for d in draws) or not all(d.is_stranger.any() for d in draws):
        return None
    rates = fnir([_probes(d) for d in draws], FPIRS, within=1)
    return {
        "rule": asdict(draws[0].calibration.rule) if draws[0].calibration else asdict(DecisionRule()),
        "fnir": {f"{rate:g}": asdict(one) for rate, one in zip(FPIRS, rates, strict=True)},
        "decided": {f"{rate:g}": _decide(draws, rate) for rate in FPIRS},
    }


def _probes(outcomes: OpenSetOutcomes) -> Probes:
    known = ~outcomes.is_stranger
    # a search that finds somebody else first misses at any threshold: its rank is beyond the first
    mate = np.where(np.isfinite(outcomes.distances[known]), outcomes.distances[known], np.finfo(np.float64).max)
    ranks = np.where(outcomes.is_right[known], 1, 2).astype(np.int64)
    people = outcomes.people.astype(np.float64)
    return Probes(mate, outcomes.distances[outcomes.is_stranger], people[known], people[outcomes.is_stranger], ranks)


def _decide(draws: Sequence[OpenSetOutcomes], rate: float) -> dict[str, Any] | None:
    named: list[Floats] = []
    missed: list[Floats] = []
    strangers: list[Floats] = []
    enrolled: list[Floats] = []
    for draw in draws:
        threshold = draw.calibration.threshold(rate, draw.gallery_faces) if draw.calibration else None
        if threshold is None or not threshold.enough:
            continue
        within = draw.distances <= threshold.person_distance
        known = ~draw.is_stranger
        named.append(within[draw.is_stranger].astype(np.float64))
        missed.append((~(within & draw.is_right)[known]).astype(np.float64))
        strangers.append(draw.people[draw.is_stranger].astype(np.float64))
        enrolled.append(draw.people[known].astype(np.float64))
    if not named:
        return None
    rates: dict[str, Interval] = {
        "fpir": bootstrap_rate(np.concatenate(named), np.concatenate(strangers)),
        "fnir": bootstrap_rate(np.concatenate(missed), np.concatenate(enrolled)),
    }
    return {"draws": len(named), **{name: asdict(interval) for name, interval in rates.items()}}
