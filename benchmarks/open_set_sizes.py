"""Measure how a threshold transfers from one gallery size to another."""

from typing import Any

import numpy as np

from benchmarks.open_set_scores import ADOPTED, ScoredSearches, score, share_within, tail_threshold
from benchmarks.open_set_trial import OpenSetTrial, SearchSet, TrialGallery, TrialSizes, draw_trial, one_face_each_first
from ml.types import Ids, Rows

FPIR = 0.01
SIZES = (250, 500, 1000, 2000, 4500)
SEARCHES, PAIRS = 2000, 400_000
MAX_FITTED_RATE = 0.2
PLAN = TrialSizes(people=200, queries=100, strangers=1000, everybody=True)


def compare(rows: Rows, people: Ids, distractors: Rows, seeds: int) -> dict[str, Any]:
    """Return mean rates (0..1) over seeds, of strangers of the set and of distractors that are named.

    Rows: `measured at -> used at`; `pairs`: a threshold of the nearest face by 1 - (1 - fmr)^N; `enrolled distractors`:
    with 2,900 distractors enrolled.
    """
    table: dict[str, dict[str, list[float]]] = {}
    for seed in range(seeds):
        trial = draw_trial(rows, people, distractors, PLAN, seed)
        rng = np.random.default_rng((seed, 2))
        order = rng.permutation(len(trial.gallery.counts))
        measured = {size: _measure(trial, np.sort(order[:size]), rng) for size in SIZES}
        for size, (faces, left_out, _) in measured.items():
            for other, (now, _, scored) in measured.items():
                rate = 1 - (1 - FPIR) ** (faces / now)
                threshold = (
                    tail_threshold(left_out, rate) if rate <= MAX_FITTED_RATE else float(np.quantile(left_out, rate))
                )
                row = table.setdefault(f"{size} -> {other}", {})
                for name, scores in scored.items():
                    row.setdefault(name, []).append(share_within(scores, threshold))
        for size in SIZES:
            table.setdefault(f"pairs, {size}", {}).setdefault("distractors", []).append(
                _by_pairs(trial, np.sort(order[:size]), rng)
            )
    return {"seeds": seeds, "sizes": {k: {n: round(float(np.mean(v)), 5) for n, v in r.items()}
                                      for k, r in table.items()}}  # fmt: skip


def _measure(trial: OpenSetTrial, chosen: Ids, rng: np.random.Generator) -> tuple[int, Any, dict[str, Any]]:
    """Return the size of a smaller gallery, the scores of its leave-one-out searches, and those of strangers."""
    gallery = _choose(trial.gallery, chosen)
    indices = one_face_each_first(gallery.owners, rng)[:SEARCHES]
    left_out = SearchSet(gallery.rows[indices], gallery.owners[indices])
    smaller = OpenSetTrial(
        gallery, trial.queries, trial.query_people, trial.strangers, trial.distractors, left_out, trial.cohort
    )
    scored: dict[str, ScoredSearches] = {
        "left out": score(smaller, left_out, None)[ADOPTED],
        "strangers": score(smaller, trial.strangers, None)[ADOPTED],
        "distractors": score(smaller, trial.distractors, None)[ADOPTED],
    }
    scores = {name: part.scores for name, part in scored.items()}
    return len(gallery.rows), scores.pop("left out"), scores


def _choose(gallery: TrialGallery, chosen: Ids) -> TrialGallery:
    kept = np.isin(gallery.owners, chosen)
    return TrialGallery(gallery.rows[kept], np.searchsorted(chosen, gallery.owners[kept]))


def _by_pairs(trial: OpenSetTrial, chosen: Ids, rng: np.random.Generator) -> float:
    """Return the share of distractors named at a threshold from pairs of different people."""
    gallery = _choose(trial.gallery, chosen)
    first, second = rng.integers(len(gallery.rows), size=(2, PAIRS))
    different = gallery.owners[first] != gallery.owners[second]
    distances = 2 - 2 * np.einsum("ij,ij->i", gallery.rows[first[different]], gallery.rows[second[different]])
    rate = 1 - (1 - FPIR) ** (1 / len(gallery.rows))
    count = max(1, int(rate * len(distances)))
    threshold = float(np.partition(distances, count - 1)[count - 1])
    nearest = (2 - 2 * (trial.distractors.rows @ gallery.rows.T)).min(1)
    return share_within(nearest, threshold)
