"""The report of a candidate: measured on people held out, beside the model that serves, on exactly the same faces."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.calibration import MIN_PAIRS_PER_CLASS, Calibration
from ml.distances import Distance
from ml.embedders.base import Embedder
from ml.evaluation.comparisons.decisions import SearchDistances
from ml.evaluation.comparisons.paired_tests import compare
from ml.evaluation.protocols import Protocol
from ml.evaluation.report import rank_protocol, summarise
from ml.evaluation.retrieval import Ranked, average_precisions, n_call
from ml.evaluation.verification import best_threshold
from ml.types import Ids, Rows
from workers.training.embedder_fit import draw_pairs
from workers.training.face_embeddings import Bench, Contestant, Placed
from workers.training.training_data import Facts

Distances = NDArray[np.float64]

QUERIES = 2000
OF_ONE = 10
"""Queries in all, and of one person at most."""
PAIRS = 20_000
"""Drawn to calibrate on, half of them the same."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One task's measurement: who was held out, and what the protocol is called."""

    bench: Bench
    facts: Facts
    held: NDArray[np.bool_]
    name: str


@dataclass(frozen=True, eq=False)
class Measured:
    """ranked: None where nothing could be searched for; genuine, impostor: distances of held-out pairs; said: of the
    explicit labels. float64. impostor_people: (n, 2) numbers of the two people of each impostor pair. searches: what
    the default decision goes by, where the task is who somebody is."""

    metric: Distance
    ranked: Ranked | None
    genuine: Distances
    impostor: Distances
    said: Distances
    impostor_people: Ids
    searches: SearchDistances | None = None


def measure(trial: Trial, model: Contestant) -> Measured:
    """Searches for the held-out faces among the other held-out faces and the distractors."""
    facts, metric = trial.facts, model.embedder.metric
    placed = trial.bench.embed(model, facts.task)
    said = metric.pair_distances(placed.faces, trial.bench.place(facts.pairs))
    searched = np.flatnonzero(facts.member & trial.held & ~np.isnan(facts.truth))
    ranked = _rank(trial, placed, searched, metric)
    if ranked is None:
        fresh = trial.held[facts.pairs].any(axis=1)
        impostor = fresh & ~facts.same
        people = trial.bench.snapshot.people[facts.pairs[impostor]]
        return Measured(metric, None, said[fresh & facts.same], said[impostor], said, people)
    drawn, alike = draw_pairs(facts.truth[searched], facts.tolerance, PAIRS, np.random.default_rng(0))
    genuine = metric.pair_distances(placed.faces, trial.bench.place(searched[drawn[alike]]))
    people = _impostor_people(ranked, trial.bench.snapshot.people[searched])
    searches = _search(trial, placed, searched, metric) if facts.task == "identity" else None
    return Measured(metric, ranked, genuine, ranked.impostor.astype(np.float64), said, people, searches)


def _search(trial: Trial, placed: Placed, searched: Ids, metric: Distance) -> SearchDistances:
    people = trial.bench.snapshot.people[searched]
    rows = placed.faces[trial.bench.place(searched)]
    return SearchDistances.by_rule(rows, people, placed.distractors, choose_queries(people), metric)


def _impostor_people(ranked: Ranked, people: Ids) -> Ids:
    """(n, 2) whose the two faces of each impostor pair are. people: of the faces searched among; behind these lie the
    distractors, each of whom is somebody else."""
    found = ranked.impostor_ids
    stranger = people.max(initial=0) + 1 + found
    searched = np.minimum(found, len(people) - 1)
    other = np.where(found < len(people), people[searched], stranger)
    return np.stack([ranked.impostor_of.astype(np.int64), other], axis=1)


def _rank(trial: Trial, placed: Placed, searched: Ids, metric: Distance) -> Ranked | None:
    facts, bench = trial.facts, trial.bench
    if len(searched) < 2:
        return None
    here = bench.place(searched)
    everybody = np.arange(len(here))
    people = bench.snapshot.people[searched]
    protocol = Protocol(trial.name, people, np.empty(0, np.int64), choose_queries(people), everybody)
    ranked = rank_protocol(
        placed.faces[here],
        protocol,
        metric=metric,
        values=facts.truth[searched],
        tolerance=facts.tolerance,
        distractors=placed.distractors,
    )
    return ranked if len(ranked.genuine) and len(ranked.impostor) else None


def choose_queries(people: Ids) -> Ids:
    """Every held-out face searches once, of one person ten at most, 2,000 in all: the same at each measurement."""
    draw = np.random.default_rng(0)
    shuffled = draw.permutation(len(people))
    order = shuffled[np.argsort(people[shuffled], kind="stable")]
    starts = np.flatnonzero(np.r_[True, np.diff(people[order]) != 0])
    turn = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    chosen = order[turn < OF_ONE]
    return np.sort(draw.permutation(chosen)[:QUERIES])


def report(trial: Trial, now: Measured, before: Measured | None) -> dict[str, Any]:
    """candidate, current: `Report.to_dict`, or None; difference: candidate less current, by query, each with its
    interval and the p of a permutation test; labels: how many explicit labels each gets right."""
    told: dict[str, Any] = {
        "candidate": None,
        "current": None,
        "difference": None,
        "labels": _labels(trial, now, before),
    }
    if now.ranked is None:
        return told
    told["candidate"] = _summary(trial, now.ranked, now.metric)
    if before is not None and before.ranked is not None:
        told["current"] = _summary(trial, before.ranked, before.metric)
        told["difference"] = {
            "mAP": _difference(average_precisions(now.ranked), average_precisions(before.ranked), now.ranked),
            "1-call@1": _difference(n_call(now.ranked, 1), n_call(before.ranked, 1), now.ranked),
            "1-call@10": _difference(n_call(now.ranked, 10), n_call(before.ranked, 10), now.ranked),
        }
    return told


def _summary(trial: Trial, ranked: Ranked, metric: Distance) -> dict[str, Any]:
    return summarise([ranked], protocol=trial.name, task=trial.facts.task, metric=metric).to_dict()


def _difference(now: NDArray[np.float64], before: NDArray[np.float64], ranked: Ranked) -> dict[str, float]:
    found = compare(now, before, ranked.groups)
    return asdict(found.difference) | {"p": found.p}


def _labels(trial: Trial, now: Measured, before: Measured | None) -> dict[str, Any]:
    """`unseen`: labels of a held-out person, of which the fit knew nothing; `learned`: the others."""
    fresh: NDArray[np.bool_] = np.asarray(trial.held[trial.facts.pairs].any(axis=1), np.bool_)
    return {
        which: {
            "pairs": int(chosen.sum()),
            "right_before": None if before is None else _right(trial.facts.same, before, chosen),
            "right_now": _right(trial.facts.same, now, chosen),
        }
        for which, chosen in (("unseen", fresh), ("learned", ~fresh))
    } | {"unsettled": trial.facts.unsettled}


def _right(same: NDArray[np.bool_], measured: Measured, chosen: NDArray[np.bool_]) -> int | None:
    """Decided at the threshold that is right most often on held-out pairs, as many of the same as of others."""
    threshold = _threshold(measured)
    return None if threshold is None else int(((measured.said <= threshold) == same)[chosen].sum())


def _threshold(measured: Measured) -> float | None:
    count = min(len(measured.genuine), len(measured.impostor))
    if not count:
        return None
    draw = np.random.default_rng(0)
    parts = [draw.choice(part, count, replace=False) for part in (measured.genuine, measured.impostor)]
    return best_threshold(np.concatenate(parts), np.repeat([True, False], count))


def calibrate(measured: Measured) -> Calibration | None:
    """From held-out pairs; None where there are too few of either kind."""
    if min(len(measured.genuine), len(measured.impostor)) < MIN_PAIRS_PER_CLASS:
        return None
    return Calibration.fit(measured.genuine, measured.impostor, measured.impostor_people)


def calibrate_on_learned(embedder: Embedder, rows: Rows, facts: Facts, people: Ids) -> Calibration | None:
    """From pairs that were learned from, which look easier than they are: only where too few were held out.

    people: (N,) numbers of whom the faces are of
    """
    drawn, alike = draw_pairs(facts.truth, facts.tolerance, PAIRS, np.random.default_rng(0))
    pairs, same = np.concatenate([drawn, facts.pairs]), np.concatenate([alike, facts.same])
    if min(same.sum(), (~same).sum()) < MIN_PAIRS_PER_CLASS:
        return None
    places, at = np.unique(pairs, return_inverse=True)
    apart = embedder.metric.pair_distances(embedder.embed(rows[places], facts.task), at.reshape(-1, 2))
    return Calibration.fit(apart[same], apart[~same], people[pairs[~same]])
