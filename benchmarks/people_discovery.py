"""Find people among the faces of LFW and CelebA10k with all names hidden, and measure how well they agree.

    python -m benchmarks.people_discovery --data DATA --cache DIR [--recogniser NAME ...] [--probabilities]
    python -m benchmarks.people_discovery --synthetic 1000000

The calibration always comes from the other set: that of CelebA10k serves on LFW, and that of LFW on CelebA10k.
`--probabilities` varies the least probability at which two faces are joined. `--embeddings DIR` reads
`SET_RECOGNISER.npz` instead of describing the photos. `--synthetic N` measures the time for N synthetic faces of 128
numbers, with as many photos a person as in LFW.
"""

import argparse
import resource
import time
from pathlib import Path

import numpy as np

from benchmarks.open_set_rules import FaceSets
from ml import indexes
from ml.calibration import Calibration, draw_impostor_pairs, sample_genuine
from ml.distances import EUCLIDEAN
from ml.evaluation.people_agreement import PeopleAgreement, compare_with_people
from ml.people_discovery.discovery import MIN_PROBABILITY, discover_people, find_link_distance
from ml.people_discovery.neighbour_graph import find_links
from ml.types import Ids, Rows
from papers.harness.photos import Photos

SETS = ("celeba", "lfw")
PROBABILITIES = (0.95, 0.97, 0.98, 0.986, 0.99, 0.995)
IMPOSTOR_PAIRS, GENUINE_PAIRS = 200_000, 50_000
WITHIN_SPREAD = 0.42
"""Standard deviation of a synthetic person's faces over that of the people."""
ALONE_SHARE, PHOTOS = 0.71, (2, 3, 4, 6, 10, 30)
"""Share of synthetic people with one photo, and the numbers of photos of the others."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--cache", type=Path, default=Path(".likeness/photos"), help="keeps crops and embeddings")
    parser.add_argument("--embeddings", type=Path, help="folder of existing embeddings")
    parser.add_argument("--recogniser", action="append", help="default: dlib_resnet and mobilefacenet")
    parser.add_argument("--probabilities", action="store_true")
    parser.add_argument("--synthetic", type=int, help="number of synthetic faces")
    options = parser.parse_args()
    print("| faces | probability | F1 | precision | recall | B-cubed F1 | clusters per person, of several photos; "
          "of all | clusters | of these mixed; of the surest half | seconds |\n" + "|---" * 10 + "|")  # fmt: skip
    if options.synthetic:
        rows, people = draw_people(options.synthetic, np.random.default_rng(0))
        show("synthetic", rows, people, calibrate(rows, people), MIN_PROBABILITY)
        print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")
        return
    sets = FaceSets(Photos(options.data, options.cache), options.embeddings)
    for recogniser in options.recogniser or ("dlib_resnet", "mobilefacenet"):
        embedded = {name: sets.embed(name, recogniser) for name in SETS}
        for name, other in (SETS, SETS[::-1]):
            calibration = calibrate(*embedded[other])
            for probability in PROBABILITIES if options.probabilities else (MIN_PROBABILITY,):
                show(f"{name}, {recogniser}", *embedded[name], calibration, probability)


def calibrate(rows: Rows, people: Ids) -> Calibration:
    """Fit a calibration to pairs of (N, d) rows of (N,) people."""
    pairs = draw_impostor_pairs(people, IMPOSTOR_PAIRS, 0)
    genuine = sample_genuine(rows, people, GENUINE_PAIRS, 0, EUCLIDEAN)
    return Calibration.fit(genuine, EUCLIDEAN.pair_distances(rows, pairs), people[pairs])


def show(name: str, rows: Rows, people: Ids, calibration: Calibration, probability: float) -> None:
    """Find the people among (N, d) rows, and print one row of the table."""
    start, ids = time.perf_counter(), np.arange(len(rows))
    index = indexes.build(ids, rows, EUCLIDEAN)
    links = find_links(index, ids, ids, find_link_distance(calibration, probability))
    del index
    found = discover_people(rows, links, EUCLIDEAN, calibration, min_probability=probability)
    seconds, agreement = time.perf_counter() - start, compare_with_people(people, found.labels)
    several = np.flatnonzero(np.bincount(found.labels) > 1)
    surest = several[np.argsort(-found.probabilities[several])[: len(several) // 2]]
    sure = np.isin(found.labels, surest)
    print(_format(name, probability, agreement, _share_mixed(people[sure], found.labels[sure]),
                  len(found.probabilities) / len(np.unique(people)), seconds), flush=True)  # fmt: skip


def _share_mixed(people: Ids, labels: Ids) -> float:
    agreement = compare_with_people(people, labels)
    return agreement.mixed / max(1, agreement.clusters)


def _format(
    name: str, probability: float, agreement: PeopleAgreement, surest: float, per_person: float, seconds: float
) -> str:
    rates = (agreement.f1, agreement.precision, agreement.recall, agreement.b_cubed_f1)
    figures = " | ".join(f"{100 * rate:.1f}" for rate in rates)
    mixed = agreement.mixed / max(1, agreement.clusters)
    return (f"| {name} | {probability} | {figures} | {agreement.clusters_per_person:.2f}; {per_person:.2f} "
            f"| {agreement.clusters:,} | {100 * mixed:.0f} %; {100 * surest:.0f} % | {seconds:.1f} |")  # fmt: skip


def draw_people(faces: int, draw: np.random.Generator) -> tuple[Rows, Ids]:
    """Draw (N, 128) rows of unit length, and the (N,) person of each, in random order."""
    photos = np.where(draw.random(faces) < ALONE_SHARE, 1, draw.choice(PHOTOS, faces))
    people = draw.permutation(np.repeat(np.arange(faces), photos)[:faces])
    centres = draw.standard_normal((int(people.max()) + 1, 128), dtype=np.float32)
    rows = centres[people]
    for start in range(0, faces, 100_000):
        part = rows[start : start + 100_000]
        part += np.float32(WITHIN_SPREAD) * draw.standard_normal(part.shape, dtype=np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return rows, people


if __name__ == "__main__":
    main()
