"""Compare decision rules for open-set searches, at a rate of 1 % of strangers named.

    python -m benchmarks.open_set_rules --data DATA --cache DIR [--seeds 10] [--large-seeds 3] [--recogniser NAME ...]

A gallery of 500 people is drawn. It is searched with 300 other photos of these people, photos of 2,500 other people of
the same set, and 1,000 distractors. Thresholds come from 2,000 searches for enrolled people without their own faces,
never from the strangers. Sets: LFW (three photos or more, at most 20 enrolled) and CelebA10k (two or more), and each
with all people enrolled except 1,000 strangers. The rules were chosen on CelebA10k with dlib_resnet, and tested on the
rest. `--sizes` also measures how thresholds transfer between gallery sizes. `--embeddings DIR` reads
`SET_RECOGNISER.npz` (sets lfw, celeba, distractors; arrays rows and people) instead of describing the photos.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from app.storage.recognisers.catalogue import DLIB_OPTIONS, DLIB_RESNET
from benchmarks import open_set_pages, open_set_sizes
from benchmarks.open_set_scores import (
    ADOPTED,
    ScoredSearches,
    measure_cohorts,
    order_threshold,
    score,
    share_within,
    tail_threshold,
)
from benchmarks.open_set_trial import OpenSetTrial, TrialSizes, draw_trial
from ml.evaluation.protocols import number_people
from ml.model import Recipe
from ml.types import Ids, Rows, Spec
from papers.harness.photos import Photos

FPIR = 0.01
RECOGNISERS = ("dlib_resnet", "mobilefacenet", "lbp")
LFW, CELEBA = TrialSizes(), TrialSizes(min_photos=2)
PLANS = {
    "lfw, 500 people": ("lfw", LFW),
    "celeba, 500 people": ("celeba", CELEBA),
    "lfw, everybody": ("lfw", replace(LFW, everybody=True, strangers=1000)),
    "celeba, everybody": ("celeba", replace(CELEBA, everybody=True, strangers=1000)),
}
SAMPLES = (2000, 500, 200, 100)
REPEATS = 8
THRESHOLDS = {"k-th smallest": order_threshold, "tail fit": tail_threshold}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="LFW, CelebA10k and the distractors")
    parser.add_argument("--cache", type=Path, default=Path(".likeness/photos"), help="keeps crops and embeddings")
    parser.add_argument("--embeddings", type=Path, help="folder of existing embeddings")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--large-seeds", type=int, default=3, help="seeds for galleries with everybody")
    parser.add_argument("--recogniser", action="append", choices=RECOGNISERS, help="default: all three")
    parser.add_argument("--sizes", type=int, default=0, help="seeds of the comparison of gallery sizes")
    parser.add_argument("--json", type=Path, default=Path(".likeness/open_set_rules.json"))
    parser.add_argument("--markdown", type=Path, help="page whose tables are replaced")
    options = parser.parse_args()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    sets = FaceSets(Photos(options.data, options.cache), options.embeddings)
    results: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {}
    for recogniser in options.recogniser or RECOGNISERS:
        for name, (_, plan) in PLANS.items():
            seeds = options.large_seeds if plan.everybody else options.seeds
            if plan.everybody and recogniser == "lbp":
                continue
            key = f"{recogniser}, {name}"
            if key not in results:
                results[key] = summarise([dict(judge(trial, s)) for s, trial in draws(sets, recogniser, name, seeds)])
                options.json.write_text(json.dumps(results, indent=1) + "\n")
            open_set_pages.show(key, results[key], ADOPTED)
        if options.sizes and f"{recogniser}, sizes" not in results and recogniser != "lbp":
            rows, people = sets.embed("lfw", recogniser)
            strangers = sets.embed("distractors", recogniser)[0]
            results[f"{recogniser}, sizes"] = open_set_sizes.compare(rows, people, strangers, options.sizes)
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.markdown is not None:
        open_set_pages.update_page(options.markdown, open_set_pages.write(results, ADOPTED))


@dataclass(frozen=True)
class FaceSets:
    """The embeddings of the photo sets, computed or read from a folder."""

    photos: Photos
    folder: Path | None

    def embed(self, photo_set: str, recogniser: str) -> tuple[Rows, Ids]:
        """Return the (N, d) rows of unit length and the (N,) people of a set, one face per photo."""
        if self.folder is not None:
            with np.load(self.folder / f"{photo_set}_{recogniser}.npz") as kept:
                rows, people = kept["rows"], np.unique(kept["people"], return_inverse=True)[1].astype(np.int64)
        else:
            people = number_people(self.photos.names(photo_set))
            rows = self.photos.described(photo_set, self._recipe(recogniser), recogniser)
        return _normalise(rows), people

    def embed_degraded(self, photo_set: str, recogniser: str, degradation: str) -> Rows:
        """Return the (N, d) rows of unit length of degraded crops of a set. degradation: one of DEGRADATIONS"""
        return _normalise(self.photos.described(photo_set, self._recipe(recogniser), recogniser, degradation))

    def _recipe(self, recogniser: str) -> Recipe:
        if recogniser == DLIB_RESNET.name:
            return Recipe((Spec(recogniser, dict(DLIB_OPTIONS)),))
        return self.photos.recipe(recogniser)


def _normalise(rows: Rows) -> Rows:
    unit: Rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return unit


def draws(sets: FaceSets, recogniser: str, name: str, seeds: int) -> Iterator[tuple[int, OpenSetTrial]]:
    photo_set, plan = PLANS[name]
    rows, people = sets.embed(photo_set, recogniser)
    distractors = sets.embed("distractors", recogniser)[0]
    for seed in range(seeds):
        yield seed, draw_trial(rows, people, distractors, plan, seed)


def judge(trial: OpenSetTrial, seed: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Judge every rule at thresholds from leave-one-out searches. Rates are 0..1."""
    cohorts = measure_cohorts(trial, seed)
    searches = (trial.left_out, trial.queries, trial.strangers, trial.distractors)
    left_out, queries, strangers, distractors = [score(trial, search_set, cohorts) for search_set in searches]
    for rule in queries:
        scored, own, others = queries[rule], strangers[rule].scores, distractors[rule].scores
        right = scored.people == trial.query_people
        threshold = tail_threshold(left_out[rule].scores, FPIR)
        named = scored.scores <= threshold
        known = order_threshold(own, FPIR)
        yield (
            rule,
            {
                "faces": float(len(trial.gallery.rows)),
                "right_first": float(right.mean()),
                "named_rightly": float((right & named).mean()),
                "named_wrongly": float((~right & named).mean()),
                "strangers_named": share_within(own, threshold),
                "distractors_named": share_within(others, threshold),
                "named_rightly_at_known_threshold": float((right & (scored.scores <= known)).mean()),
            },
        )
    yield from judge_thresholds(trial, seed, left_out[ADOPTED].scores, queries[ADOPTED], strangers[ADOPTED].scores,
                                distractors[ADOPTED].scores)  # fmt: skip


def judge_thresholds(
    trial: OpenSetTrial, seed: int, left_out: Any, scored: ScoredSearches, own: Any, others: Any
) -> Iterator[tuple[str, dict[str, float]]]:
    """Judge the adopted rule at two kinds of thresholds, from decreasing numbers of searches."""
    rng, right = np.random.default_rng((seed, 1)), scored.people == trial.query_people
    for count in SAMPLES:
        for name, make in THRESHOLDS.items():
            several = [left_out] if count >= len(left_out) else [
                rng.choice(left_out, count, replace=False) for _ in range(REPEATS)]  # fmt: skip
            made = [make(scores, FPIR) for scores in several]
            figures = {
                "named_rightly": [float((right & (scored.scores <= t)).mean()) for t in made],
                "strangers_named": [share_within(own, t) for t in made],
                "distractors_named": [share_within(others, t) for t in made],
            }
            spread = {"strangers_named_spread": float(np.std(figures["strangers_named"]))}
            yield f"threshold: {name} of {count}", {k: float(np.mean(v)) for k, v in figures.items()} | spread


def summarise(trials: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Return rule -> metric -> mean and standard deviation over seeds."""
    return {
        "seeds": len(trials),
        "rules": {
            rule: {
                figure: {"mean": round(float(np.mean(values)), 5), "sd": round(float(np.std(values, ddof=1)), 5)
                         if len(values) > 1 else None}
                for figure, values in ((f, [trial[rule][f] for trial in trials]) for f in trials[0][rule])
            }
            for rule in trials[0]
        },
    }  # fmt: skip


if __name__ == "__main__":
    main()
