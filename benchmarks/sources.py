"""Measure what source compensation gains: degraded photos search a gallery of clean ones.

    python -m benchmarks.sources --data DATA --cache DIR [--splits 10] [--recogniser NAME ...] [--set NAME ...]

Each split takes half of the people to learn from: their clean photos as faces without a source, and their degraded
photos as the faces of one source, all without labels. The other people are never seen: one degraded photo of each of
them who has enough photos searches the clean photos of all of them (LFW: five photos or more; CelebA10k: two).

    cosine      the recogniser as it is
    sources     compensated for the source (`ml.compensation`), without any label
    500 "same"  sources, and a within-class whitening of 500 pairs of a clean and a degraded photo of one person

`papers.beyond.degradations` has the conditions. Intervals are of paired differences, over people.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.cli.datasets.features import load_or_describe
from ml.compensation import NO_SOURCE, SourceCompensation, fit_compensation
from ml.compensation.judgement import LARGE_SHIFT, judge_compensation
from ml.distances import EUCLIDEAN
from ml.evaluation.comparisons.paired_tests import compare
from ml.evaluation.protocols import number_people
from ml.evaluation.retrieval import Faces, average_precisions, rank
from ml.types import Ids, Rows
from papers.beyond.degradations import CLEAN, CONDITIONS, degrade_crops
from papers.harness.photos import Photos

RECOGNISERS = ("mobilefacenet", "dlib_resnet")
MIN_PHOTOS = {"lfw": 5, "celeba": 2}
SOURCE = "degraded"
LABELS = 500
WHITENING_SHRINKAGE = 0.6
"""The share of an equal spread in all directions, chosen on CelebA10k."""
YOUNG_FACES = (5, 10, 20, 50, 100, 300)
MAX_JUDGED_FACES = 2000
Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Conditions:
    """The photos of one set under one recogniser: clean (N, d), and of `photos` (M,) also degraded (M, d)."""

    people: Ids
    clean: Rows
    photos: Ids
    degraded: Rows


@dataclass(frozen=True, eq=False)
class Split:
    """Indexes of clean photos, and positions of degraded ones, on both sides of a split of the people."""

    learned_clean: Ids
    learned_degraded: Ids
    queries: Ids
    gallery: Ids


def load_conditions(photos: Photos, photo_set: str, recogniser: str) -> Iterator[tuple[str, Conditions]]:
    """Yield each condition with its descriptors, which are cached beside the crops."""
    people = number_people(photos.names(photo_set))
    several = np.flatnonzero(np.bincount(people)[people] > 1)
    recipe = photos.recipe(recogniser)
    [built] = recipe.built
    clean = photos.feature(photo_set, recogniser)
    crops = photos.crops(photo_set, built.crop)
    for condition in CONDITIONS:
        if condition == CLEAN:
            yield condition, Conditions(people, clean, several, clean[several])
            continue
        path = photos.cache / photo_set / f"{recogniser}-{recipe.keys[0]}-{condition.replace(' ', '-')}.npy"
        degraded = crops[:0] if path.exists() else degrade_crops(np.ascontiguousarray(crops[several]), condition)
        rows = load_or_describe(f"{recogniser}, {photo_set}, {condition}", built, degraded, path, keep=True)
        yield condition, Conditions(people, clean, several, rows)


def draw_split(conditions: Conditions, min_photos: int, seed: int) -> Split:
    """Draw half of the people to learn from. The clean condition learns its source from half of their photos."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(conditions.people.max() + 1)
    is_learned = np.isin(conditions.people, order[: len(order) // 2])
    counts = np.bincount(conditions.people)
    rest = np.flatnonzero(~is_learned)
    searching = [p for p in np.unique(conditions.people[rest]) if counts[p] >= min_photos]
    queries = np.array([rng.choice(np.flatnonzero(conditions.people == p)) for p in searching])
    learned_degraded = np.flatnonzero(is_learned[conditions.photos])
    return Split(np.flatnonzero(is_learned), learned_degraded, queries, np.setdiff1d(rest, queries))


def fit(conditions: Conditions, split: Split, faces: int | None = None, seed: int = 0) -> SourceCompensation:
    """Learn the compensation from the split's clean photos and from some of its degraded ones, without labels."""
    chosen = np.random.default_rng(seed).permutation(split.learned_degraded)[:faces]
    rows = np.concatenate([conditions.clean[split.learned_clean], conditions.degraded[chosen]])
    sources = np.array([NO_SOURCE] * len(split.learned_clean) + [SOURCE] * len(chosen))
    return fit_compensation(rows, sources, NO_SOURCE)


def fit_whitening(conditions: Conditions, split: Split, compensation: SourceCompensation, seed: int) -> Rows:
    """Learn a (d, d) map from LABELS pairs: a degraded photo and another, clean photo of the same person."""
    rng = np.random.default_rng(seed)
    differences: list[Rows] = []
    for position in rng.permutation(split.learned_degraded):
        photo = conditions.photos[position]
        others = np.flatnonzero(conditions.people == conditions.people[photo])
        others = others[others != photo]
        corrected = compensation.apply(conditions.degraded[position : position + 1], np.array([SOURCE]))[0]
        differences.append(corrected - conditions.clean[rng.choice(others)])
        if len(differences) == LABELS:
            break
    within = np.cov(np.stack(differences).T, bias=True)
    dim = len(within)
    mixed = (1 - WHITENING_SHRINKAGE) * within + WHITENING_SHRINKAGE * np.trace(within) / dim * np.eye(dim)
    values, axes = np.linalg.eigh(mixed)
    return np.asarray((axes / np.sqrt(values)) @ axes.T, np.float32)


def search(conditions: Conditions, split: Split, queries: Rows, gallery: Rows) -> Values:
    """Return the average precision of each query."""
    people = conditions.people.astype(np.float64)
    ranked = rank(
        Faces(queries, people[split.queries], split.queries),
        Faces(gallery, people[split.gallery], split.gallery),
        metric=EUCLIDEAN,
        impostors=0,
    )
    return average_precisions(ranked)


def measure_split(conditions: Conditions, min_photos: int, seed: int) -> dict[str, Values]:
    """Return the average precisions of each way, and the person of each query as `people`."""
    split = draw_split(conditions, min_photos, seed)
    degraded = conditions.degraded[np.searchsorted(conditions.photos, split.queries)]
    gallery = conditions.clean[split.gallery]
    sources = np.full(len(degraded), SOURCE)
    compensation = fit(conditions, split)
    corrected = compensation.apply(degraded, sources)
    figures = {
        "people": conditions.people[split.queries].astype(np.float64),
        "cosine": search(conditions, split, degraded, gallery),
        "sources": search(conditions, split, corrected, gallery),
        "shift": np.array([compensation.corrections[SOURCE].shift]),
        "judged on": np.array([_judge(conditions, split)]),
    }
    whitening = fit_whitening(conditions, split, compensation, seed)
    figures[f'{LABELS} "same"'] = search(
        conditions, split, _scale_to_unit_length(corrected @ whitening), _scale_to_unit_length(gallery @ whitening)
    )
    for faces in YOUNG_FACES:
        young = fit(conditions, split, faces, seed)
        figures[f"{faces} faces"] = search(conditions, split, young.apply(degraded, sources), gallery)
    return figures


def _judge(conditions: Conditions, split: Split) -> bool:
    """Whether the service would compensate, judged on the named people of the learning half."""
    rng = np.random.default_rng(0)
    clean = rng.permutation(split.learned_clean)[: min(MAX_JUDGED_FACES, len(split.learned_clean) // 2)]
    degraded = rng.permutation(split.learned_degraded)[: MAX_JUDGED_FACES // 4]
    degraded = degraded[~np.isin(conditions.photos[degraded], clean)]
    people = conditions.people[np.concatenate([clean, conditions.photos[degraded]])]
    rows = np.concatenate([conditions.clean[clean], conditions.degraded[degraded]])
    sources = np.array([NO_SOURCE] * len(clean) + [SOURCE] * len(degraded))
    return judge_compensation(rows, sources, people, EUCLIDEAN).decisions[SOURCE].is_on


def _scale_to_unit_length(rows: Rows) -> Rows:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def summarise(splits: list[dict[str, Values]]) -> dict[str, Any]:
    """Return the mAP of each way in percent, its gain over the cosine with interval, and how often it would be on."""
    joined = {name: np.concatenate([split[name] for split in splits]) for name in splits[0]}
    people, cosine = joined["people"], joined["cosine"]
    row: dict[str, Any] = {"cosine": 100 * float(np.nanmean(cosine))}
    for way in [name for name in joined if name not in ("people", "cosine", "shift", "judged on")]:
        gain = compare(joined[way], cosine, people)
        row[way] = 100 * float(np.nanmean(joined[way]))
        row[f"{way}, gain"] = [100 * x for x in (gain.difference.value, gain.difference.low, gain.difference.high)]
    shifts = joined["shift"]
    by_shift = int((shifts >= LARGE_SHIFT).sum())
    return row | {"shift": float(shifts.mean()), "on by shift": by_shift, "judged on": int(joined["judged on"].sum())}


def show(photo_set: str, recogniser: str, condition: str, row: Mapping[str, Any], splits: int) -> None:
    ways = ("sources", f'{LABELS} "same"')
    gains = "  ".join(
        f"{way} {row[way]:.1f} ({row[f'{way}, gain'][1]:+.1f} to {row[f'{way}, gain'][2]:+.1f})" for way in ways
    )
    young = " ".join(f"{faces}: {row[f'{faces} faces']:.1f}" for faces in YOUNG_FACES)
    decided = f"on: {row['judged on']} of {splits} by named people, {row['on by shift']} by the shift"
    print(
        f"{photo_set} {recogniser} {condition}: cosine {row['cosine']:.1f}  {gains}; "
        f"shift {row['shift']:.2f}, {decided}; by faces of the source {young}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="LFW and CelebA10k")
    parser.add_argument("--cache", type=Path, default=Path(".likeness/photos"), help="keeps crops and descriptors")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--recogniser", action="append", choices=RECOGNISERS, help="default: both")
    parser.add_argument("--set", action="append", choices=list(MIN_PHOTOS), help="default: both")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    table: dict[str, Any] = {}
    photos = Photos(args.data, args.cache)
    for photo_set in args.set or MIN_PHOTOS:
        for recogniser in args.recogniser or RECOGNISERS:
            for condition, conditions in load_conditions(photos, photo_set, recogniser):
                splits = [measure_split(conditions, MIN_PHOTOS[photo_set], seed) for seed in range(args.splits)]
                row = table[f"{photo_set}, {recogniser}, {condition}"] = summarise(splits)
                show(photo_set, recogniser, condition, row, args.splits)
    if args.json:
        args.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
