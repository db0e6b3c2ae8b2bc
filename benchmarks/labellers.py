"""Which weights of labellers settle most pairs rightly, in drawn labels whose truth is known.

    python -m benchmarks.labellers [--seeds 50]

Three honest labellers judge a third to a half of 1,000 pairs each and err at a given rate. One gives 1,000 random
answers, one says "same" 400 times, and a newcomer gives five honest answers. The rules are compared on the same labels.
"""

import argparse
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.galleries.label_consensus import ConsensusRule, decide_consensus
from ml.labeller_reliability import Votes, compare_with_others, estimate_reliability

PAIRS, HONEST_PAIRS, SAME_ANSWERS, NEW_ANSWERS = 1000, 500, 400, 5
ERROR_RATES = (0.02, 0.05, 0.15)
COMMON_SHARES = (1.0, 0.2, 0.0)
"""Shares of the honest labellers' pairs that more than one of them judges."""


class DrawnLabels(NamedTuple):
    """truth: (PAIRS,); votes: on pairs (i, PAIRS + i)"""

    truth: NDArray[np.bool_]
    votes: dict[tuple[int, int], dict[str, bool]]


class RuleOutcome(NamedTuple):
    """Settled pairs, those settled wrongly, and the weights of three labellers."""

    settled: int
    wrong: int
    random: float
    always_same: float
    newcomer: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50)
    seeds = parser.parse_args().seeds
    print("error  shared  rule        settled  wrong  random  always same  newcomer")
    for error in ERROR_RATES:
        for shared in COMMON_SHARES:
            for name, rule in RULES.items():
                rows = np.array([measure_rule(rule, draw_labels(error, shared, seed)) for seed in range(seeds)])
                mean = RuleOutcome(*rows.mean(axis=0))
                draw = f"{error:5.2f}  {shared:6.1f}  {name:10}  {mean.settled:7.1f}  {mean.wrong:5.1f}"
                print(f"{draw}  {mean.random:6.2f}  {mean.always_same:11.2f}  {mean.newcomer:8.2f}")


def draw_labels(error: float, shared: float, seed: int) -> DrawnLabels:
    """Draw the labels. shared: the share of HONEST_PAIRS that all three of them judge"""
    rng = np.random.default_rng(seed)
    truth, votes = rng.random(PAIRS) < 0.5, dict[tuple[int, int], dict[str, bool]]()

    def add(by: str, pairs: NDArray[np.int64], answers: NDArray[np.bool_]) -> None:
        for pair, same in zip(pairs.tolist(), answers.tolist(), strict=True):
            votes.setdefault((pair, PAIRS + pair), {})[by] = bool(same)

    common = rng.permutation(PAIRS)[: int(shared * HONEST_PAIRS)]
    rest = np.array_split(np.setdiff1d(rng.permutation(PAIRS), common, assume_unique=True), 3)
    for by, own in zip(("honest-1", "honest-2", "honest-3"), rest, strict=True):
        pairs = np.concatenate([common, own])[:HONEST_PAIRS]
        add(by, pairs, truth[pairs] ^ (rng.random(len(pairs)) < error))
    add("random", np.arange(PAIRS), rng.random(PAIRS) < 0.5)
    add("always same", rng.permutation(PAIRS)[:SAME_ANSWERS], np.ones(SAME_ANSWERS, np.bool_))
    new = rng.permutation(PAIRS)[:NEW_ANSWERS]
    add("newcomer", new, truth[new] ^ (rng.random(NEW_ANSWERS) < error))
    return DrawnLabels(truth, votes)


def weigh_by_majority(votes: Votes) -> Mapping[str, float]:
    """Weigh by the shrunk agreement with the majority of the others."""
    return {
        by: max(0.0, 2 * (agreed + 9) / (compared + 10) - 1) / 0.8
        for by, (compared, agreed) in compare_with_others(votes).items()
    }


RULES: dict[str, Callable[[Votes], Mapping[str, float]]] = {
    "equal": lambda votes: {},
    "majority": weigh_by_majority,
    "agreement": lambda votes: estimate_reliability(votes).weight_of,
}


def measure_rule(rule: Callable[[Votes], Mapping[str, float]], drawn: DrawnLabels) -> RuleOutcome:
    """Settle the pairs by a rule, and compare with the truth."""
    weights = rule(drawn.votes)
    settled = decide_consensus(drawn.votes, ConsensusRule(weights))
    wrong = int((settled.same != drawn.truth[settled.pairs[:, 0]]).sum())
    of_three = [weights.get(by, 1.0) for by in ("random", "always same", "newcomer")]
    return RuleOutcome(len(settled), wrong, *of_three)


if __name__ == "__main__":
    main()
