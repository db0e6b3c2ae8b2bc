"""After how many suggested questions both kinds of answers have come, on strong recognisers.

    python -m benchmarks.question_kinds --data DATA --cache DIR [--recogniser NAME ...] [--seeds 10]

2,000 random faces of LFW, and of CelebA10k, without names, compared by cosine. Requests of 20 pairs are answered
truthfully.
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.storage.recognisers.catalogue import DLIB_RESNET
from benchmarks.open_set_rules import FaceSets
from ml.active_learning import PairAnswers, choose_pairs
from ml.active_learning.pair_choice import MIN_ANSWERS_PER_KIND
from ml.distances import EUCLIDEAN
from ml.types import Ids, Rows
from papers.harness.photos import MODEL, Photos

FACES, REQUEST_PAIRS, QUESTIONS = 2000, 20, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="LFW and CelebA10k")
    parser.add_argument("--cache", type=Path, default=Path(".likeness/photos"), help="keeps crops and embeddings")
    parser.add_argument("--embeddings", type=Path, help="folder of existing embeddings; see benchmarks.open_set_rules")
    parser.add_argument("--recogniser", action="append", help=f"default: {MODEL} and {DLIB_RESNET.name}")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    sets = FaceSets(Photos(options.data, options.cache), options.embeddings)
    for recogniser in options.recogniser or (MODEL, DLIB_RESNET.name):
        for photo_set in ("lfw", "celeba"):
            rows, people = sets.embed(photo_set, recogniser)
            runs = [answer_questions(rows, people, seed) for seed in range(options.seeds)]
            both, enough = ([count_questions(same, wanted) for same in runs] for wanted in (1, MIN_ANSWERS_PER_KIND))
            print(f"{recogniser}, {photo_set}: both kinds after {both}, {MIN_ANSWERS_PER_KIND} of each after {enough}")


def answer_questions(rows: Rows, people: Ids, seed: int) -> NDArray[np.bool_]:
    """Return (QUESTIONS,) the answers to suggested pairs of random faces. rows: (N, d); people: (N,)"""
    sample = np.random.default_rng(seed).permutation(len(rows))[:FACES]
    some, owners, answers = rows[sample], people[sample], PairAnswers.empty()
    while len(answers) < QUESTIONS:
        chosen = choose_pairs(some, np.full(len(some), -1), EUCLIDEAN, answers, REQUEST_PAIRS).pairs
        pairs = np.concatenate([answers.pairs, chosen])
        answers = PairAnswers(pairs, owners[pairs[:, 0]] == owners[pairs[:, 1]])
    return answers.same


def count_questions(same: NDArray[np.bool_], wanted: int) -> int | None:
    """Return after how many of (n,) answers there are `wanted` of each kind; None if there never are."""
    counts = np.minimum(np.cumsum(same), np.cumsum(~same))
    return int(np.argmax(counts >= wanted)) + 1 if counts[-1] >= wanted else None


if __name__ == "__main__":
    main()
