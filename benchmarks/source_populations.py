"""Measure what source compensation costs if sources differ in their people, not in their photos.

    python -m benchmarks.source_populations --data DATA --cache DIR [--set NAME ...]

All photos are clean. Two sources divide the people by the sign of a principal component of their mean embeddings, which
is as different as two populations can be, or at random. The photos of a fifth of the people are spread over both at
random; they search for their photos in the other source. It shows the shift, mAP without and with the correction, and
how much of the difference a degradation explains. The shift and this share must stay below those from which the service
compensates without being able to judge.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.degraded_pool import DegradedPool
from benchmarks.sources import MIN_PHOTOS
from ml.compensation import Sources, fit_compensation
from ml.compensation.degradations import DEGRADATIONS
from ml.compensation.simulation import TRIAL_FACES, choose_degradation
from ml.distances import EUCLIDEAN
from ml.evaluation.protocols import number_people
from ml.evaluation.retrieval import average_precision, ranks_of
from ml.types import Ids, Rows
from papers.harness.photos import Photos

COMPONENTS = 3
SHARED_PEOPLE = 0.2
NAMES = ("west", "east")


def divide_people(rows: Rows, people: Ids, component: int, rng: np.random.Generator) -> Ids:
    """Return (P,) 0 or 1 for each person: by the sign of a principal component from 1, or at random for 0."""
    totals = np.zeros((people.max() + 1, rows.shape[1]))
    np.add.at(totals, people, rows)
    means = totals / np.bincount(people)[:, None]
    centred = means - means.mean(0)
    side = centred @ np.linalg.eigh(np.cov(rows.T))[1][:, -component] if component else rng.normal(size=len(means))
    return np.asarray(side > np.median(side), np.int64)


def search_across(rows: Rows, people: Ids, site: Ids, queries: Ids) -> float:
    """Return the mAP of searches for the photos of the query's person in the other source, in percent."""
    precisions = []
    for query, distances in zip(queries, EUCLIDEAN.distances(rows[queries], rows), strict=True):
        own = people == people[query]
        kept = ~(own & (site == site[query]))
        if own[kept].any():
            precisions.append(average_precision(ranks_of(distances[kept], np.flatnonzero(own[kept]))))
    return 100 * float(np.mean(precisions))


def explain_by_degradation(rows: Rows, sources: Sources, pool: DegradedPool) -> tuple[str, float]:
    """Return the degradation that resembles the difference between both sources most, and the share it explains."""
    reference = pool.photos[sources[pool.photos] == NAMES[0]]
    trial = np.sort(np.random.default_rng(0).permutation(reference)[:TRIAL_FACES])
    changes = {name: (pool.describe(name, trial) - rows[trial]).mean(0, dtype=np.float64) for name in DEGRADATIONS}
    means = [rows[sources == name].mean(0, dtype=np.float64) for name in NAMES]
    return choose_degradation(means[1] - means[0], changes)


def measure(
    rows: Rows, people: Ids, min_photos: int, component: int, pool: DegradedPool
) -> tuple[float, float, float, str, float]:
    """Return the shift, the mAP without and with the correction, and what `explain_by_degradation` returns."""
    rng = np.random.default_rng(component)
    side = divide_people(rows, people, component, rng)
    is_shared = rng.random(len(side)) < SHARED_PEOPLE
    site = np.where(is_shared[people], rng.integers(0, 2, len(people)), side[people])
    sources = np.array(NAMES)[site]
    compensation = fit_compensation(rows, sources, NAMES[0])
    searching = np.flatnonzero(is_shared & (np.bincount(people) >= min_photos))
    queries = np.array([rng.choice(np.flatnonzero(people == person)) for person in searching])
    figures = [search_across(one, people, site, queries) for one in (rows, compensation.apply(rows, sources))]
    explained = explain_by_degradation(rows, sources, pool)
    return compensation.corrections[NAMES[1]].shift, figures[0], figures[1], *explained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="LFW and CelebA10k")
    parser.add_argument("--cache", type=Path, default=Path(".likeness/photos"), help="keeps crops and descriptors")
    parser.add_argument("--recogniser", default="mobilefacenet")
    parser.add_argument("--set", action="append", choices=list(MIN_PHOTOS), help="default: both")
    args = parser.parse_args()
    photos = Photos(args.data, args.cache)
    for photo_set in args.set or MIN_PHOTOS:
        rows, people = photos.feature(photo_set, args.recogniser), number_people(photos.names(photo_set))
        pool = DegradedPool.open(photos, photo_set, args.recogniser)
        for component in range(COMPONENTS + 1):
            figures = measure(rows, people, MIN_PHOTOS[photo_set], component, pool)
            shift, before, after, degradation, explained = figures
            way = f"component {component}" if component else "at random"
            likeness = f"{degradation} explains {explained:.2f}"
            print(f"{photo_set} {way}: shift {shift:.3f}, mAP {before:.1f} -> {after:.1f}, {likeness}", flush=True)


if __name__ == "__main__":
    main()
