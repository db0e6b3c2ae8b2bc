"""How often models that learned from labels name strangers, by thresholds of the first fit and of the one that serves.

    python -m benchmarks.refit_scale [--methods cpmtml subsml ...] [--people 400] [--photos 4]
        [--fits 1] [--seeds 6]

Of the photos of each person, half have a name, and labels give the others theirs, of which 5 % are wrong; each of the
latter is also labelled to be none of somebody else. Half of the people are held out, and searched for at a rate of
1 %: by the fit that has not learned from them, and with their distances carried over to the fit on everybody
(`ml.embedder_training.held_out_strangers`). Then 4,000 strangers are searched for with the latter. Faces are drawn
vectors of 64 numbers, of which 16 tell people apart. With several fits, each holds out others of the people, and all
are searched for, as a small collection does.
"""

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.nameless_faces import NAMED, MeasuredGallery
from ml.embedder_training.examples import TaskExamples
from ml.embedder_training.fit import fit_embedder
from ml.embedder_training.held_out_strangers import FittedGallery, measure_held_out_strangers
from ml.embedder_training.holdout_fit import HoldoutFit
from ml.embedder_training.training_set import make_training_set
from ml.embedders.base import Embedder, ignore_progress
from ml.identification.person_distance import DecisionRule
from ml.indexes import build
from ml.types import Ids, Rows

TASK = "identity"
FPIR, STRANGERS, WRONG = 0.01, 4000, 0.05
DIM, TELLING, NOISE, OTHER_NOISE = 64, 16, 0.6, 0.7
OPTIONS: dict[str, dict[str, Any]] = {"cpmtml": {"dim": 32, "steps": 300}, "clml": {"dim": 32}, "ldml": {"dim": 16}}


def draw_faces(people: int, photos: int, axes: Rows, rng: np.random.Generator) -> Rows:
    """Draw unit rows of so many people."""
    telling = np.repeat(rng.normal(size=(people, TELLING)), photos, axis=0)
    telling += NOISE * rng.normal(size=telling.shape)
    other = OTHER_NOISE * rng.normal(size=(len(telling), DIM - TELLING))
    rows = np.concatenate([telling, other], axis=1) @ axes
    unit: Rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def count_named(photos: int) -> int:
    """Return how many photos of a person have a name."""
    return (photos + 1) // 2


def draw_labels(people: int, photos: int, rng: np.random.Generator) -> tuple[Ids, Ids, NDArray[np.bool_]]:
    """Return (n,) the person of each photo as labelled, and (P, 2) labels with (P,) whether they say "the same"."""
    rows = np.arange(photos * people)
    owners, nameless = rows // photos, rows[rows % photos >= count_named(photos)]
    is_wrong = rng.random(len(nameless)) < WRONG
    owners[nameless[is_wrong]] = rng.integers(0, people, is_wrong.sum())
    others = (owners[nameless] + rng.integers(1, people, len(nameless))) % people
    pairs = np.concatenate(
        [np.stack([nameless, photos * owners[nameless]], axis=1), np.stack([nameless, photos * others], axis=1)]
    )
    return owners, pairs, np.repeat([True, False], len(nameless))


def measure(method: str, people: int, photos: int, fits: int, seed: int) -> list[float]:
    """Return % of strangers named by the threshold of the first fit, and by that of the fit that serves.

    NaN where these people are too few for a threshold.
    """
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    rows, strangers = draw_faces(people, photos, axes, rng), draw_faces(STRANGERS, 1, axes, rng)
    owners, pairs, same = draw_labels(people, photos, rng)
    names = np.where(np.arange(len(rows)) % photos < count_named(photos), owners, -1)
    values, member = np.where(names < 0, np.nan, names), np.ones(len(rows), np.bool_)
    weights = np.ones(len(pairs), np.float32)
    examples = TaskExamples(TASK, member, values, values, 0.0, "subjects", pairs, same, weights, 0, None)
    parts = [owners % max(2, fits) == part for part in range(fits)]

    def fit(kept: NDArray[np.bool_], like: Embedder | None = None) -> Embedder:
        data = make_training_set([examples], owners, rows, kept)
        return fit_embedder(method, OPTIONS.get(method, {}), data, ignore_progress, like=like)

    first = fit(~parts[0])
    serving = fit(member, first)
    holdouts = [HoldoutFit(first, parts[0]), *(HoldoutFit(fit(~part, first), part) for part in parts[1:])]
    gallery, rule = FittedGallery.from_faces(rows, owners, names), DecisionRule()
    index = build(gallery.people.ids, serving.embed(rows, TASK), serving.metric)
    shares = []
    for scale in (first, serving):
        known = measure_held_out_strangers(holdouts, scale, owners, rows, names=names)
        threshold = known.threshold(FPIR, len(rows)) if known else None
        if threshold is None:
            shares.append(np.nan)
            continue
        measured = MeasuredGallery(index, gallery.people, rule, threshold)
        shares.append(100 * float(measured.judge(serving.embed(strangers, TASK))[NAMED].mean()))
    return shares


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["subsml", "cpmtml", "pcca", "utml", "sml", "clml", "wccn"])
    parser.add_argument("--people", type=int, default=400)
    parser.add_argument("--photos", type=int, default=4, help="of each person")
    parser.add_argument("--fits", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=6)
    args = parser.parse_args(arguments)
    print(
        f"% of {STRANGERS:,} strangers named at {FPIR:.0%}, mean (most) of {args.seeds} seeds: first fit | serving fit"
    )
    for method in args.methods:
        measured = [measure(method, args.people, args.photos, args.fits, seed) for seed in range(args.seeds)]
        columns = (f"{np.nanmean(part):.2f} ({np.nanmax(part):.2f})" for part in np.array(measured).T)
        without = int(np.isnan(measured).any(axis=1).sum())
        print(f"{method}: {' | '.join(columns)}{f', {without} without a threshold' * bool(without)}", flush=True)


if __name__ == "__main__":
    main()
