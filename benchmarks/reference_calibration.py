"""Measure the calibration that ships with a recogniser (ml/reference_calibrations).

    python -m benchmarks.reference_calibration --data DATA --cache DIR [--recogniser dlib_resnet]

Data: LFW deep-funneled, the centre face of each of the 13,233 photos. Impostors: every pair of different people.
Genuine: at most 50,000 pairs, with the person drawn first so that a person with 530 photos does not dominate. Only the
slope and the intercept of the probability and quantiles of the impostor distances are written.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.storage.recognisers.catalogue import DLIB_OPTIONS
from ml.calibration import Calibration, ImpostorDistances, draw_impostor_pairs, sample_genuine
from ml.calibration.rate_intervals import TAIL_EXPONENT, effective_pairs
from ml.distances import EUCLIDEAN
from ml.evaluation.protocols import number_people
from ml.model import Recipe
from ml.reference_calibrations import FOLDER
from ml.types import Ids, Rows, Spec
from papers.harness.photos import Photos

GENUINE_PAIRS, SLOPE_PAIRS, PEOPLE_PAIRS = 50_000, 1_000_000, 2_000_000
BLOCK_ROWS = 1024
DIGITS = 6
OPTIONS = {"dlib_resnet": DLIB_OPTIONS}


def measure(rows: Rows, people: Ids) -> Calibration:
    """Fit a calibration. rows: (N, d) of unit length; people: (N,)"""
    genuine = sample_genuine(rows, people, GENUINE_PAIRS, 0)
    impostor = impostor_distances(rows, people)
    some = np.random.default_rng(0).choice(impostor, min(SLOPE_PAIRS, len(impostor)))
    every = ImpostorDistances.of(impostor)
    return replace(
        Calibration.fit(genuine, some), impostors=replace(every, effective=effective_numbers(rows, people, every))
    )


def effective_numbers(rows: Rows, people: Ids, impostors: ImpostorDistances) -> tuple[float, ...]:
    """Return the effective number of independent pairs for the rate at each of the distances.

    The variance between people is measured on a sample of the pairs; the variance of single pairs, 1 / n, is that of
    all pairs. Below the rates in the sample, the variance is extrapolated as in `ml.calibration.rate_intervals`.
    """
    pairs = draw_impostor_pairs(people, PEOPLE_PAIRS, 0)
    order = np.argsort(EUCLIDEAN.pair_distances(rows, pairs))
    sampled = effective_pairs(people[pairs[order]])
    n = len(sampled)
    rate = np.arange(1, n) / n
    spread = np.maximum(1 / sampled[:-1] - 1 / n, 0) * (1 - rate) / rate
    wanted = np.minimum(np.array(impostors.counts) / impostors.n, rate[-1])
    tail = np.maximum(rate[0] / wanted, 1) ** TAIL_EXPONENT
    relative = np.interp(np.log(wanted), np.log(rate), spread) * tail
    numbers = 1 / (1 / impostors.n + relative * wanted / (1 - wanted))
    return tuple(numbers.round(1).tolist())


def impostor_distances(rows: Rows, people: Ids) -> NDArray[np.float64]:
    """Return the squared distances of all pairs of different people, each once."""
    parts = []
    for start in range(0, len(rows), BLOCK_ROWS):
        block = rows[start : start + BLOCK_ROWS]
        squared = np.maximum(2 - 2 * (block @ rows[start:].T), 0)
        later = np.arange(len(rows) - start)[None] > np.arange(len(block))[:, None]
        other = people[start : start + BLOCK_ROWS, None] != people[None, start:]
        parts.append(squared[later & other])
    return np.concatenate(parts).astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--recogniser", default="dlib_resnet", choices=sorted(OPTIONS))
    parser.add_argument("--out", type=Path, help="default: the file in the package")
    arguments = parser.parse_args()
    name = arguments.recogniser
    photos = Photos(arguments.data, arguments.cache)
    recipe = Recipe((Spec(name, OPTIONS[name]),))
    rows = photos.described("lfw", recipe)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    people = number_people(photos.names("lfw"))
    calibration = measure(rows, people)
    stored = calibration.to_dict()
    impostors = stored["impostors"]
    impostors["distances"] = [round(distance, DIGITS) for distance in impostors["distances"]]
    impostors["effective"] = []  # no interval is stated, since LFW may differ from other people
    written = {
        "recogniser": name,
        "options": OPTIONS[name],
        "measured_on": f"LFW deep-funneled, {len(rows):,} faces of {people.max() + 1:,} people",
        "calibration": stored,
    }
    out = arguments.out or FOLDER / f"{name}.json"
    out.write_text(json.dumps(written) + "\n")
    for rate in (1e-3, 1e-4, 1e-5, 1e-6):
        print(f"false-match rate {rate:g}: distance {calibration.threshold(rate).distance:.4f}")
    print(f"slope {calibration.slope:.3f}, intercept {calibration.intercept:.3f}, {impostors['n']:,} impostors: {out}")


if __name__ == "__main__":
    main()
