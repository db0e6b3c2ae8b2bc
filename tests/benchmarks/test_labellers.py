"""The benchmark of the weights of labellers, on a few draws."""

import numpy as np

from benchmarks.labellers import HONEST_PAIRS, PAIRS, RULES, draw_labels, measure_rule


def test_agreement_settles_fewer_pairs_wrongly_than_equal_weights() -> None:
    measured = {name: [measure_rule(rule, draw_labels(0.05, 1.0, s)) for s in range(3)] for name, rule in RULES.items()}
    wrong = {name: np.mean([row.wrong for row in rows]) for name, rows in measured.items()}
    assert wrong["agreement"] < 10
    assert wrong["equal"] > 150
    assert all(row.random == 0 for row in measured["agreement"])


def test_honest_labellers_judge_as_many_pairs_whatever_they_share() -> None:
    for shared in (1.0, 0.2):
        votes = draw_labels(0.05, shared, 0).votes
        judged = [sum(by in of_pair for of_pair in votes.values()) for by in ("honest-1", "honest-2", "honest-3")]
        assert max(judged) <= HONEST_PAIRS
    assert sum("random" in of_pair for of_pair in votes.values()) == PAIRS
