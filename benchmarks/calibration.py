"""Compare calibrations of a model on people from whom it has learned, and on others.

    likeness export-embeddings lfw --data DATA --method clml --dim 32 --option k=16 \\
        --protocol P/disjoint-0.txt --out D.npz (and P/queries-0.txt, Q.npz)
    python -m benchmarks.calibration --strangers D.npz --known Q.npz --protocols P [--json FILE]

Strangers: of the people in D.npz from whom the model has not learned, half are used for calibration and half for
testing. Known: new photos of people in Q.npz, compared with training photos of the same and of other people. The
cross-entropy (nats, balanced classes; 0.69 means no information) measures the probabilities. The rate is the share of
impostors that pass at a nominal 0.001, and the misses are the share of genuine pairs that then do not.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml.calibration import Calibration, sample_genuine, sample_impostors
from ml.distances import EUCLIDEAN, INNER_PRODUCT
from ml.evaluation import protocols
from ml.evaluation.protocols import Protocol
from ml.types import Ids, Rows

GENUINE, IMPOSTOR = 50_000, 1_000_000
OF_ONE, OTHERS = 20, 2_000
FMR, SURE = 0.001, 1e-12

Distances = NDArray[np.float64]
Pairs = tuple[Distances, Distances]
DISTANCES = {distance.label: distance for distance in (EUCLIDEAN, INNER_PRODUCT)}


class CalibrationSpace:
    """The embeddings of all faces, and which people were used for training."""

    def __init__(self, file: Path, protocol: str, folder: Path) -> None:
        kept = np.load(file)
        self.rows: Rows = kept["x"]
        self.metric = DISTANCES[str(kept["metric"])]
        self.protocol: Protocol = protocols.read(protocol, folder, kept["f"].tolist())
        self.people = self.protocol.people

    def pairs(self, faces: Ids) -> Pairs:
        rows, people = self.rows[faces], self.people[faces]
        genuine = sample_genuine(rows, people, GENUINE, 0, self.metric)
        return genuine, sample_impostors(rows, people, IMPOSTOR, 0, self.metric)

    def learned(self) -> Pairs:
        return self.pairs(self.protocol.training)

    def strangers(self) -> tuple[Pairs, Pairs]:
        """Return the pairs of one half of the people who were not used for training, and of the other."""
        numbers = np.setdiff1d(self.people, self.people[self.protocol.training])
        half = np.random.default_rng(0).permutation(numbers)[: len(numbers) // 2]
        of_half, unseen = np.isin(self.people, half), np.isin(self.people, numbers)
        return self.pairs(np.flatnonzero(of_half)), self.pairs(np.flatnonzero(unseen & ~of_half))

    def known(self) -> Pairs:
        draw, training = np.random.default_rng(0), self.protocol.training
        genuine, impostor = [], []
        for query in self.protocol.queries:
            same = self.people[training] == self.people[query]
            genuine += [(query, mate) for mate in draw.permutation(training[same])[:OF_ONE]]
            impostor += [(query, other) for other in draw.choice(training[~same], OTHERS)]
        return self.metric.pair_distances(self.rows, np.array(genuine)), self.metric.pair_distances(
            self.rows, np.array(impostor)
        )


def judge(calibration: Calibration, pairs: Pairs) -> dict[str, float]:
    genuine, impostor = pairs
    limit = calibration.threshold(FMR).distance
    same, other = (np.clip(calibration.probability(p), SURE, 1 - SURE) for p in pairs)
    right = np.log(same).mean(), np.log1p(-other).mean()
    return {
        "cross_entropy": -float(sum(right)) / 2,
        "rate": float((impostor <= limit).mean()),
        "misses": float((genuine > limit).mean()),
    }


def measure(strangers: CalibrationSpace, known: CalibrationSpace) -> dict[str, dict[str, float]]:
    one, other = strangers.strangers()
    of_strangers = Calibration.fit(*one)
    known_pairs = known.known()
    return {
        "strangers, by people learned from": judge(Calibration.fit(*strangers.learned()), other),
        "strangers, by other strangers": judge(of_strangers, other),
        "the known, by people learned from": judge(Calibration.fit(*known.learned()), known_pairs),
        "the known, by strangers": judge(of_strangers, known_pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strangers", type=Path, required=True)
    parser.add_argument("--known", type=Path, required=True)
    parser.add_argument("--protocols", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    strangers = CalibrationSpace(args.strangers, "disjoint-0", args.protocols)
    figures = measure(strangers, CalibrationSpace(args.known, "queries-0", args.protocols))
    print(json.dumps(figures, indent=1))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
