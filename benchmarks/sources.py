"""Measure what source compensation gains: degraded photos search a gallery of clean ones.

    python -m benchmarks.sources --data DATA --cache DIR [--splits 10] [--recogniser NAME ...] [--set NAME ...]
        [--condition NAME ...] [--few-faces] [--simulate-as NAME ...]

Each split takes half of the people to learn from: their clean photos as faces without a source, and their degraded
photos as the faces of one source, all without labels. The other people are never seen: one degraded photo of each of
them who has enough photos searches the clean photos of all of them (LFW: five photos or more; CelebA10k: two).

    cosine      the recogniser as it is
    sources     compensated for the source (`ml.compensation`), without any label and without simulation
    simulated   the same, where the source is simulated by degrading clean photos of the people that it learns from
    500 "same"  each of the two, and a within-class whitening of 500 pairs of a clean and a degraded photo of one person
    mixed       half of the gallery's photos are degraded as well; degraded or clean photos search it
    served      what the service decides on 500 degraded photos of named people: simulated, sources, or no correction
    guessed     the same, where the search does not say that it is degraded; also for clean photos as searches

`papers.beyond.degradations` has the conditions. The service simulates by its own degradations
(`ml.compensation.degradations`), none of which equals a condition. `--simulate-as` has it simulate every condition by a
degradation that may be wrong. Intervals are of paired differences, over people.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.degraded_pool import DegradedPool
from benchmarks.source_conditions import ALL_CONDITIONS, Conditions, Split, draw_split, load_conditions
from benchmarks.source_fits import LABELS, SOURCE, fit, fit_as, fit_whitening, judge
from ml.compensation import SourceCompensation
from ml.compensation.degradations import DEGRADATIONS
from ml.distances import EUCLIDEAN
from ml.evaluation.comparisons.paired_tests import compare
from ml.evaluation.retrieval import Faces, average_precisions, rank
from ml.types import Rows
from papers.harness.photos import Photos

RECOGNISERS = ("mobilefacenet", "dlib_resnet")
MIN_PHOTOS = {"lfw": 5, "celeba": 2}
WHITENING_SHRINKAGE = {"sources": 0.6, "simulated": 0.8}
"""The share of an equal spread in all directions, chosen on CelebA10k."""
FEW_FACES = (5, 10, 20, 50, 100, 300)
MIXED = ", mixed"
CLEAN_QUERY = ", clean query in a clean gallery"
ON, GAIN, RECOGNISED = "on, ", ", gain", "recognised, "
Values = NDArray[np.float64]


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


@dataclass(frozen=True)
class Options:
    """What is measured besides.

    has_few_faces: sources of FEW_FACES faces; degradations: names of simulations by which every condition is corrected
    """

    has_few_faces: bool = False
    degradations: Sequence[str] = ()


def search_mixed(conditions: Conditions, split: Split, compensation: SourceCompensation | None) -> dict[str, Values]:
    """Search a gallery of which half is degraded, with degraded and with clean photos of the same people."""
    clean, degraded = conditions.clean[split.queries], conditions.degraded
    queries = degraded[np.searchsorted(conditions.photos, split.queries)]
    gallery = conditions.clean[split.gallery]
    positions = np.flatnonzero(np.isin(split.gallery, conditions.photos))[::2]
    poor = degraded[np.searchsorted(conditions.photos, split.gallery[positions])]
    if compensation is not None:
        queries = compensation.apply(queries, np.full(len(queries), SOURCE))
        poor = compensation.apply(poor, np.full(len(poor), SOURCE))
    gallery[positions] = poor
    return {
        MIXED: search(conditions, split, queries, gallery),
        f"{MIXED}, clean query": search(conditions, split, clean, gallery),
    }


def measure_split(
    conditions: Conditions, min_photos: int, seed: int, pool: DegradedPool, options: Options
) -> dict[str, Values]:
    """Return the average precisions of each way, the person of each query as `people`, and the decisions as 0 or 1."""
    split = draw_split(conditions, min_photos, seed)
    degraded = conditions.degraded[np.searchsorted(conditions.photos, split.queries)]
    gallery, sources = conditions.clean[split.gallery], np.full(len(degraded), SOURCE)
    figures = {
        "people": conditions.people[split.queries].astype(np.float64),
        "cosine": search(conditions, split, degraded, gallery),
    }
    figures |= {f"cosine{kind}": values for kind, values in search_mixed(conditions, split, None).items()}

    def measure(compensation: SourceCompensation) -> Values:
        return search(conditions, split, compensation.apply(degraded, sources), gallery)

    for way, used in (("sources", None), ("simulated", pool)):
        compensation = fit(conditions, split, pool=used)
        figures[way] = measure(compensation)
        mixed = search_mixed(conditions, split, compensation)
        figures |= {f"{way}{kind}": values for kind, values in mixed.items()}
        whitening = fit_whitening(conditions, split, compensation, seed, WHITENING_SHRINKAGE[way])
        rows = [compensation.apply(degraded, sources), gallery]
        whitened = [_scale_to_unit_length(one @ whitening) for one in rows]
        figures[f'{way}, {LABELS} "same"'] = search(conditions, split, *whitened)
        for faces in FEW_FACES if options.has_few_faces else ():
            figures[f"{way}, {faces} faces"] = measure(fit(conditions, split, faces, seed, used))
    for name in options.degradations:
        figures[f"as {name}"] = measure(fit_as(conditions, split, pool, name))
    figures["shift"] = np.array([compensation.corrections[SOURCE].shift])
    for name, judged in judge(conditions, split, pool).items():
        decision = judged.decisions[SOURCE]
        figures[f"{ON}{name}"] = np.array([decision.is_on])
        figures[f"{ON}{name}, simulated"] = np.array([decision.is_on and decision.degradation is not None])
        figures[f"served, {name}"] = measure(judged.compensation)
        figures |= search_guessed(conditions, split, judged.compensation, name)
    return figures


def search_guessed(conditions: Conditions, split: Split, served: SourceCompensation, name: str) -> dict[str, Values]:
    """Search with degraded and with clean photos whose source the service guesses."""
    gallery, figures = conditions.clean[split.gallery], dict[str, Values]()
    degraded = conditions.degraded[np.searchsorted(conditions.photos, split.queries)]
    for kind, queries in (("", degraded), (CLEAN_QUERY, conditions.clean[split.queries])):
        guessed = served.guess(queries)
        figures[f"cosine{kind}"] = search(conditions, split, queries, gallery)
        figures[f"guessed, {name}{kind}"] = search(conditions, split, served.apply(queries, guessed), gallery)
        figures[f"{RECOGNISED}{name}{kind}"] = (guessed == SOURCE).astype(np.float64)
    return figures


def _scale_to_unit_length(rows: Rows) -> Rows:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def summarise(splits: list[dict[str, Values]]) -> dict[str, Any]:
    """Return the mAP of each way in percent, its gain over the cosine with interval, and how often it would be on."""
    joined = {name: np.concatenate([split[name] for split in splits]) for name in splits[0]}
    people = joined.pop("people")
    row: dict[str, Any] = {"shift": float(joined.pop("shift").mean())}
    for name, values in joined.items():
        if name.startswith(ON):
            row[name] = int(values.sum())
        elif name.startswith(RECOGNISED):
            row[name] = 100 * float(values.mean())
        else:
            row[name] = 100 * float(np.nanmean(values))
            kind = next((name[name.index(kind) :] for kind in (MIXED, CLEAN_QUERY) if kind in name), "")
            baseline = joined[f"cosine{kind}"]
            row[f"{name}{GAIN}"] = _describe_gain(values, baseline, people)
    for kind in ("", f', {LABELS} "same"', MIXED, f"{MIXED}, clean query"):
        gain = _describe_gain(joined[f"simulated{kind}"], joined[f"sources{kind}"], people)
        row[f"simulated over sources{kind}{GAIN}"] = gain
    return row


def _describe_gain(values: Values, others: Values, people: Values) -> list[float]:
    """Return the mean difference and its interval in percent."""
    gain = compare(values, others, people).difference
    return [100 * x for x in (gain.value, gain.low, gain.high)]


def show(photo_set: str, recogniser: str, condition: str, row: Mapping[str, Any]) -> None:
    """Print what `summarise` returned, a line for each way."""
    print(f"{photo_set}, {recogniser}, {condition}: shift {row['shift']:.2f}")
    for name in row:
        if f"{name}{GAIN}" in row:
            print(f"    {name}: {row[name]:.1f} ({_format(row[f'{name}{GAIN}'])})")
        elif name.startswith("simulated over"):
            print(f"    {name}: {_format(row[name])}")
    print(
        "    of the searches, in percent,",
        ", ".join(f"{name} {row[name]:.1f}" for name in row if name.startswith(RECOGNISED)),
    )
    print("    of the splits", ", ".join(f"{name} {row[name]}" for name in row if name.startswith(ON)), flush=True)


def _format(gain: Sequence[float]) -> str:
    return f"{gain[0]:+.1f}; {gain[1]:+.1f} to {gain[2]:+.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="LFW and CelebA10k")
    parser.add_argument("--cache", type=Path, default=Path(".likeness/photos"), help="keeps crops and descriptors")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--recogniser", action="append", choices=RECOGNISERS, help="default: both")
    parser.add_argument("--set", action="append", choices=list(MIN_PHOTOS), help="default: both")
    parser.add_argument("--condition", action="append", choices=ALL_CONDITIONS, help="default: all")
    parser.add_argument("--few-faces", action="store_true", help="also measure sources of few faces")
    parser.add_argument("--simulate-as", action="append", choices=list(DEGRADATIONS), default=[], metavar="NAME")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    options = Options(args.few_faces, args.simulate_as)
    table: dict[str, Any] = {}
    photos = Photos(args.data, args.cache)
    for photo_set in args.set or MIN_PHOTOS:
        for recogniser in args.recogniser or RECOGNISERS:
            pool = DegradedPool.open(photos, photo_set, recogniser)
            names = args.condition or ALL_CONDITIONS
            for condition, conditions in load_conditions(photos, photo_set, recogniser, names):
                measure = partial(measure_split, conditions, MIN_PHOTOS[photo_set], pool=pool, options=options)
                splits = [measure(seed=seed) for seed in range(args.splits)]
                row = table[f"{photo_set}, {recogniser}, {condition}"] = summarise(splits)
                show(photo_set, recogniser, condition, row)
    if args.json:
        args.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
