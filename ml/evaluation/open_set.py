"""Evaluate open-set decisions by person distances: FNIR at FPIR, and the rates at the gallery's own threshold."""

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
from ml.identification.open_set import OpenSetCalibration
from ml.identification.person_distance import DecisionRule, find_nearest_people
from ml.identification.searches import GalleryPeople, list_people, search_gallery
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
    """The searches of one gallery, for enrolled people and for strangers.

    people: (Q,) person of each probe; is_stranger: (Q,) whether that person is not enrolled
    is_right: (Q,) whether the probe's own person is the nearest
    distances: (Q,) person distance of the nearest person, +inf if no named person is found
    calibration: the distances of the gallery's own people as strangers; None if nobody could be searched for
    """

    people: Ids
    is_stranger: Flags
    is_right: Flags
    distances: Floats
    gallery_faces: int
    calibration: OpenSetCalibration | None


def search_open_set(embeddings: Rows, protocol: Protocol, metric: Distance) -> OpenSetOutcomes:
    """Search a protocol's gallery by the default decision rule, as the service does.

    embeddings: (N, d), one row per photo of the protocol. Probes of unknown people are left out.
    Raises WrongShape if the gallery is empty.
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
    """Return (Q,) the nearest named person, -1 if there is none, and (Q,) the person distance."""
    nobody = np.full(len(queries), -1)
    near, _ = list_people(index, people, queries, nobody, nobody)
    known = {
        owner: PersonTemplate.from_rows(embeddings[people.ids[people.faces_of(owner)]])
        for owner in np.unique(near.people[near.people >= 0]).tolist()
    }
    query, rank = np.nonzero(near.people >= 0)
    template = np.full(near.people.shape, np.inf)
    templates = [known[owner] for owner in near.people[query, rank].tolist()]
    template[query, rank] = template_distances(index.metric, queries[query], templates)
    distances, nearest = find_nearest_people(near, template, people.is_rival, rule)
    return np.where(np.isfinite(distances), nearest, -1), distances


def _calibrate(index: Index, people: GalleryPeople, rule: DecisionRule) -> OpenSetCalibration | None:
    faces = people.sample(people.is_named, MAX_SEARCHES, np.random.default_rng(0))
    outcomes = search_gallery(index, people, faces, rule)
    try:
        searches = StrangerSearches.from_distances("leave-one-out", outcomes.stranger, outcomes.owners, len(people.ids))
    except TooFewPairs:
        return None
    return OpenSetCalibration(rule, (searches,))


def summarise_open_set(draws: Sequence[OpenSetOutcomes]) -> dict[str, Any] | None:
    """Summarise all draws as values for JSON: rates 0..1 with 95 % intervals over people.

    Returns None unless there are probes of enrolled people and of strangers. The result has two entries:
        fnir: FNIR by FPIR (as text), at the threshold at which this share of the strangers' searches names somebody
        decided: by FPIR, the FPIR and FNIR at the threshold that the gallery itself estimates for this rate, and the
            number of draws with enough evidence for one; null if no draw had enough
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
    # a search that finds another person first misses at any threshold, so its rank must be greater than 1
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
