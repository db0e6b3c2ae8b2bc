"""Measure how often the stated 95 % intervals of error rates contain the truth, over random splits of people.

    python -m benchmarks.coverage --data DIR [--splits 200] [--sets lfw celeba] [--features lbp ...] [--json FILE]
    python -m benchmarks.coverage --simulate [--splits 200]

FMR: some people are used for calibration (the threshold at a rate and its interval, from sampled pairs, as in the
service). Two designs measure how often the interval contains the true rate at the threshold:

    halves: one half of the people calibrates, and all pairs of the other half give the reference rate. The reference
        has an error too, so each end of the interval is moved outwards, on a logarithmic scale, to the root of the sum
        of squares of its own distance and of 1.96 standard errors of the reference (jackknife over people). An
        interval with 95 % coverage keeps it; without this correction it would cover the reference in 83 %.
    whole: n people calibrate, and all people of the set give the reference. Since the n people are a part of them, the
        variance between people, from which the effective number of pairs is computed, is multiplied by 1 - n / N (the
        finite-population correction).

FPIR, FNIR: one gallery, searched with one photo of each stranger and of each enrolled person. Half of the strangers set
the threshold, half of the mates give FNIR at it, and the other halves are the reference. FNMR: pairs of photos of one
person, at a fixed threshold, with halves of the people.

--simulate uses both designs, and the true rate, on people drawn from a hierarchical Gaussian model with known FMR:
photos are N(mean of the person, w) and means N(0, 1 - w) in d dimensions, so half the squared distance of two people's
photos is chi-squared with d degrees of freedom.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from joblib import cpu_count

from benchmarks.coverage_judges import (
    CoverageOutcome,
    JudgedSearches,
    PeopleSample,
    World,
    judge_halves,
    judge_searches,
    judge_truth,
    judge_whole,
)
from ml import registry
from ml.calibration import MAX_FACES_PER_PERSON, choose_faces
from ml.types import Ids
from papers.harness.photos import Photos

RATES = (1e-2, 1e-3, 1e-4)
FPIRS = (0.1, 0.01)
SETS = ("lfw", "celeba")
FEATURES = ("dlib_resnet", "mobilefacenet", "lbp")
SIZES = (1000, 300, 100)
"""People used for calibration in the design `whole`."""
WORLD_PEOPLE = 2000
"""People in a simulated set."""

Judge = Callable[[int], list[CoverageOutcome]]
"""Returns the outcomes of the split with a seed."""


@dataclass(frozen=True)
class Coverage:
    """The coverage of one kind of interval over all splits. Shares are 0..1.

    ends: median ratio of the upper to the lower end; pairs_covered: coverage of the former intervals over pairs
    """

    data: str
    features: str
    judge: str
    people: int
    figure: str
    rate: float
    events: float
    covered: float
    below: float
    above: float
    ends: float
    pairs_covered: float | None


def measure_data(args: argparse.Namespace) -> Iterator[Coverage]:
    photos = Photos(args.data, args.cache.resolve())
    for photo_set in args.sets:
        for features in args.features:
            everybody = load(photos, photo_set, features)
            yield from measure(everybody, photo_set, features, args.splits, args.jobs)


def load(photos: Photos, photo_set: str, features: str) -> PeopleSample:
    """Load a set with embeddings that are not learned: unit vectors of a network, or LBP."""
    embedder = registry.build("embedders", "l2" if features == "lbp" else "cosine")
    rows = embedder.embed(photos.rows(photo_set, features))
    _, people = np.unique([name.split("/")[0] for name in photos.names(photo_set)], return_inverse=True)
    return limit_photos(PeopleSample(rows, people.astype(np.int64), embedder.metric))


def limit_photos(everybody: PeopleSample) -> PeopleSample:
    """Limit the photos of each person as a calibration does, so that both measure the same rate."""
    chosen = choose_faces(everybody.people, np.random.default_rng(0))
    return PeopleSample(everybody.rows[chosen], everybody.people[chosen], everybody.metric)


def measure(everybody: PeopleSample, data: str, features: str, splits: int, jobs: int) -> Iterator[Coverage]:
    """Measure the coverage in every design, for every metric and rate."""
    near, n = everybody.near_pairs(4 * max(RATES)), len(everybody.photos)
    searches = JudgedSearches.of(everybody, near)
    judges: list[tuple[str, int, Judge]] = [
        ("halves", n // 2, partial(judge_halves, everybody, near, RATES)),
        *(("whole", size, partial(judge_whole, everybody, near, size, RATES)) for size in SIZES if size < n // 2),
        ("halves", n // 2, partial(judge_searches, searches, FPIRS)),
    ]
    for name, people, judge in judges:
        for outcomes in zip(*run_over_seeds(judge, splits, jobs), strict=True):
            yield summarise(data, features, name, people, outcomes)


def measure_simulated(splits: int, jobs: int) -> Iterator[Coverage]:
    """Measure on simulated people, a new set for each seed, in every design and against the true rate."""
    worlds = {"even": World(16, 0.7, draw_even_counts), "uneven": World(64, 0.7, draw_uneven_counts)}
    for name, world in worlds.items():
        for judge in (_true, _by_halves, _by_whole):
            for outcomes in zip(*run_over_seeds(partial(judge, world), splits, jobs), strict=True):
                yield summarise("gauss", name, judge.__name__.rpartition("_")[2], WORLD_PEOPLE // 2, outcomes)


def _true(world: World, seed: int) -> list[CoverageOutcome]:
    return judge_truth(world, world.draw(WORLD_PEOPLE, seed), RATES, seed)


def _by_halves(world: World, seed: int) -> list[CoverageOutcome]:
    everybody = world.draw(WORLD_PEOPLE, seed)
    return judge_halves(everybody, everybody.near_pairs(4 * max(RATES)), RATES, seed)


def _by_whole(world: World, seed: int) -> list[CoverageOutcome]:
    everybody = world.draw(WORLD_PEOPLE, seed)
    return judge_whole(everybody, everybody.near_pairs(4 * max(RATES)), WORLD_PEOPLE // 2, RATES, seed)


def draw_even_counts(draw: np.random.Generator, people: int) -> Ids:
    """Draw one to five photos for each person."""
    return draw.integers(1, 6, people)


def draw_uneven_counts(draw: np.random.Generator, people: int) -> Ids:
    """Draw numbers of photos as in LFW: most people have one, a few as many as a calibration uses."""
    return np.minimum(draw.pareto(1.5, people) + 1, MAX_FACES_PER_PERSON).astype(np.int64)


def run_over_seeds(judge: Judge, splits: int, jobs: int) -> list[list[CoverageOutcome]]:
    """Run a design for each seed in forked processes, which share the data without copying."""
    with ProcessPoolExecutor(jobs, get_context("fork"), _keep, (judge,)) as pool:
        return list(pool.map(_run, range(splits), chunksize=4))


_kept: list[Judge] = []


def _keep(judge: Judge) -> None:
    _kept[:] = [judge]


def _run(seed: int) -> list[CoverageOutcome]:
    return _kept[0](seed)


def summarise(data: str, features: str, judge: str, people: int, outcomes: Sequence[CoverageOutcome]) -> Coverage:
    below = float(np.mean([one.truth < one.low for one in outcomes]))
    above = float(np.mean([one.truth > one.high for one in outcomes]))
    of_pairs = [one.pairs_hold for one in outcomes if one.pairs_hold is not None]
    return Coverage(
        data,
        features,
        judge,
        people,
        outcomes[0].figure,
        outcomes[0].rate,
        events=float(np.mean([one.events for one in outcomes])),
        covered=1 - below - above,
        below=below,
        above=above,
        ends=float(np.median([one.ends for one in outcomes])),
        pairs_covered=float(np.mean(of_pairs)) if of_pairs else None,
    )


def show(one: Coverage) -> None:
    old = "" if one.pairs_covered is None else f"  over pairs {100 * one.pairs_covered:5.1f} %"
    print(
        f"{one.data:7} {one.features:13} {one.judge:6} {one.people:5} people  {one.figure} at {one.rate:<6g}"
        f" {one.events:6.0f} events  covered {100 * one.covered:5.1f} %"
        f" (below {100 * one.below:4.1f}, above {100 * one.above:4.1f})  ends x {one.ends:<6.3g}{old}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of the data")
    parser.add_argument("--cache", type=Path, default=Path(".likeness/cache"), help="where crops and features are kept")
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--features", nargs="+", default=FEATURES)
    parser.add_argument("--jobs", type=int, default=cpu_count())
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not args.data and not args.simulate:
        parser.error("give --data DIR or --simulate")
    coverages = []
    for one in measure_simulated(args.splits, args.jobs) if args.simulate else measure_data(args):
        show(one)
        coverages.append(asdict(one))
    if args.json:
        args.json.write_text(json.dumps(coverages, indent=1))


if __name__ == "__main__":
    main()
