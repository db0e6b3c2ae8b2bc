"""The rules that are compared: from the distances to people to the nearest person and its score."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.open_set_trial import (
    NEAREST_OF_COHORT,
    NO_FACE_DISTANCE,
    OpenSetTrial,
    PersonDistances,
    Scores,
    SearchSet,
    TrialGallery,
    nearest_people,
    person_distances,
)
from ml.types import Ids

ADOPTED = "template 2/3, margin 3/4"
MARGINS = (0.0, 0.25, 0.5, 0.75, 1.0)
SHARES = {"1/2": 1 / 2, "2/3": 2 / 3, "3/4": 3 / 4}
CORRECTIONS = {"1/4": 1 / 4, "1/2": 1 / 2, "1": 1.0}
PEOPLE_OF_A_TAIL = 50
NAMES = {0.0: "0", 0.25: "1/4", 0.5: "1/2", 0.75: "3/4", 1.0: "1"}


@dataclass(frozen=True, eq=False)
class ScoredSearches:
    """Searches scored by a rule. people: (S,) the nearest person; scores: (S,), smaller is more alike"""

    people: Ids
    scores: Scores


@dataclass(frozen=True, eq=False)
class Cohorts:
    """For each person, the mean and spread of the distances of the nearest strangers in a cohort.

    kind -> (P,) mean and (P,) standard deviation of the adopted base distance
    """

    of: dict[str, tuple[Scores, Scores]]


def score(trial: OpenSetTrial, searches: SearchSet, cohorts: Cohorts | None) -> dict[str, ScoredSearches]:
    """Score the searches by every rule. cohorts: None leaves out the rules that are normalised by them"""
    blocks: list[dict[str, ScoredSearches]] = []
    for distances in person_distances(trial.gallery, searches):
        blocks.append(dict(_linear(trial.gallery, distances)) | dict(_by_other_people(distances)))
        if cohorts is not None:
            blocks[-1] |= dict(_by_cohort(base_distance(distances), cohorts))
    return {rule: ScoredSearches(np.concatenate([b[rule].people for b in blocks]),
                        np.concatenate([b[rule].scores for b in blocks])) for rule in blocks[0]}  # fmt: skip


def base_distance(distances: PersonDistances, share: float = 2 / 3) -> Scores:
    """Return the adopted base distance: a weighted mean of nearest face and template."""
    return _weigh(distances.nearest, distances.template, share)


def _weigh(nearest: Scores, template: Scores, share: float) -> Scores:
    return (1 - share) * nearest + share * template


def _linear(gallery: TrialGallery, distances: PersonDistances) -> Iterator[tuple[str, ScoredSearches]]:
    """Score by a distance of each person minus a share of the lead over the next one."""
    several = gallery.within_variance * (1 - 1 / gallery.counts)
    bases: dict[str, tuple[Scores, tuple[float, ...]]] = {
        "nearest face": (distances.nearest, MARGINS),
        "mean of the two nearest faces": (distances.second, (0.0, 0.5)),
        "template alone": (distances.template, (0.0, 0.5, 0.75)),
        "template of unit length alone": (distances.unit, (0.0, 0.5)),
        "mean distance to all faces": (distances.average, (0.0, 0.5)),
    }
    bases |= {f"template {name}": (base_distance(distances, share), MARGINS) for name, share in SHARES.items()}
    bases |= {
        f"template 2/3, count correction {name}": (
            _weigh(distances.nearest, distances.template + part * several, 2 / 3), (0.5, 0.75))
        for name, part in CORRECTIONS.items()
    }  # fmt: skip
    for name, (base, margins) in bases.items():
        people, near = nearest_people(base, 2)
        for margin in margins:
            yield (
                f"{name}, margin {NAMES[margin]}",
                ScoredSearches(people, near[:, 0] - margin * (near[:, 1] - near[:, 0])),
            )


def _by_other_people(distances: PersonDistances) -> Iterator[tuple[str, ScoredSearches]]:
    """Score the nearest person relative to the next people, who are strangers to the query."""
    people, near = nearest_people(base_distance(distances), PEOPLE_OF_A_TAIL + 1)
    first, rest = near[:, 0], near[:, 1:]
    for count in (3, 10):
        lead = rest[:, :count].mean(1) - first
        yield f"template 2/3, margin 1/2 to the next {count}", ScoredSearches(people, first - 0.5 * lead)
    for count in (10, PEOPLE_OF_A_TAIL):
        mean, spread = rest[:, :count].mean(1), np.maximum(rest[:, :count].std(1), 1e-6)
        yield f"t-norm, {count} next people", ScoredSearches(people, (first - mean) / spread)
    excess = np.maximum(rest[:, -1] - rest.mean(1), 1e-6)
    yield "exponential tail of the next 50 people", ScoredSearches(people, (first - rest[:, 0]) / excess)
    yield "generalised Pareto tail of the next 50 people", ScoredSearches(people, _pareto(first, rest))


def _pareto(first: Scores, rest: Scores) -> Scores:
    """Return the log of the tail probability at `first` of a generalised Pareto tail, fitted by moments."""
    excess = rest[:, -1:] - rest[:, :-1]
    mean, variance = np.maximum(excess.mean(1), 1e-9), np.maximum(excess.var(1), 1e-12)
    shape = 0.5 * (1 - mean**2 / variance)
    scale = 0.5 * mean * (mean**2 / variance + 1)
    beyond = rest[:, -1] - first
    shape = np.where(np.abs(shape) < 1e-3, 1e-3, shape)
    inside = np.maximum(1 + shape * beyond / scale, 1e-300)
    share = -np.log(inside) / shape
    return np.where(inside <= 1e-300, -600 - beyond, np.maximum(share, -600.0))


def _by_cohort(base: Scores, cohorts: Cohorts) -> Iterator[tuple[str, ScoredSearches]]:
    """Normalise scores adaptively: of each person by a cohort, and of the query by the next people."""
    _, near = nearest_people(base, 11)
    mean, spread = near[:, 1:].mean(1)[:, None], np.maximum(near[:, 1:].std(1), 1e-6)[:, None]
    for kind, (centre, width) in cohorts.of.items():
        normed = (base - centre) / width
        for name, scored in (
            (f"centred by {kind}", base - centre),
            (f"z-norm by {kind}", normed),
            (f"s-norm by {kind}", (normed + (base - mean) / spread) / 2),
        ):
            people, values = nearest_people(scored, 1)
            yield name, ScoredSearches(people, values[:, 0])


def measure_cohorts(trial: OpenSetTrial, seed: int) -> Cohorts:
    """Measure the cohorts: the gallery's own faces, and distractors that are not searched for."""
    rng = np.random.default_rng(seed)
    indices = rng.permutation(len(trial.gallery.rows))[: len(trial.cohort)]
    own = SearchSet(trial.gallery.rows[indices], trial.gallery.owners[indices])
    return Cohorts({"gallery": _nearest_of(trial, own), "distractors": _nearest_of(trial, SearchSet(trial.cohort))})


def _nearest_of(trial: OpenSetTrial, searches: SearchSet) -> tuple[Scores, Scores]:
    base = np.concatenate([base_distance(block) for block in person_distances(trial.gallery, searches)])
    near = np.sort(np.where(np.isfinite(base), base, NO_FACE_DISTANCE), axis=0)[:NEAREST_OF_COHORT]
    return near.mean(0), np.maximum(near.std(0), 1e-3)


def order_threshold(scores: Scores, fpir: float) -> float:
    """Return the largest score that at most this share of searches reaches; -inf if there is none."""
    count = int(np.floor(fpir * len(scores) + 1e-9))
    return float(np.partition(scores, count - 1)[count - 1]) if count else -np.inf


def tail_threshold(scores: Scores, fpir: float, low: float = 0.03, high: float = 0.2) -> float:
    """Return the threshold by an exponential tail, fitted to the scores between the shares `low` and `high`.

    Scores are regressed on the log of their share, and extrapolated to `fpir`. Scores below `low` are ignored, because
    they include people enrolled under two names.
    """
    ordered = np.sort(scores)
    first = max(1, int(low * len(ordered)))
    indices = np.arange(first, max(int(high * len(ordered)), first + 3))
    slope, intercept = np.polyfit(np.log((indices + 0.5) / len(ordered)), ordered[indices], 1)
    return float(intercept + slope * np.log(fpir))


def share_within(scores: Scores, threshold: float) -> float:
    """Return the share of searches that name somebody."""
    within: NDArray[np.bool_] = scores <= threshold
    return float(within.mean())
