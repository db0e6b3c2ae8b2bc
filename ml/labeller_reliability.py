"""Estimate from their common pairs how far each labeller can be believed: Dawid and Skene (1979), with a prior.

A labeller has two rates: how often they answer "same" where two faces are the same, and "not the same" where they are
not. The rates and the true answers are estimated in turn (EM). Only pairs that two or more labellers judged count: of
the others nothing can be learned. The prior is worth PRIOR_ANSWERS answers, so a newcomer counts as a usual labeller.

A labeller's weight is the lower bound of informedness (the sum of both rates minus one; 0 for random answers and for
one who always says the same), relative to the bound of a newcomer. A weight below
MIN_WEIGHT is none: what is hardly better than chance would otherwise decide the pairs that nobody else judged.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml.types import Rows

PRIOR_RATE = 0.9
PRIOR_ANSWERS = 10.0
"""Answers of each kind that the prior is worth."""
WEIGHT_DEVIATIONS = 1.5
"""Standard deviations of informedness that are subtracted from it before it counts."""
MIN_WEIGHT = 0.2
ITERATIONS = 100
TOLERANCE = 1e-6

Votes = Mapping[tuple[int, int], Mapping[str, bool]]
"""Pair -> labeller -> whether they are the same."""


class Agreement(NamedTuple):
    """compared: a labeller's pairs on which a majority of the others agree; agreed: those where the labeller does"""

    compared: int
    agreed: int


@dataclass(frozen=True, eq=False)
class LabellerReliability:
    """What the common pairs say of L labellers.

    labellers: L names, in their order; same_rate, different_rate: (L,) in 0..1; weights: (L,), 1 for a newcomer
    judged: (L,) number of their pairs that others judged too
    """

    labellers: tuple[str, ...]
    same_rate: Rows
    different_rate: Rows
    weights: Rows
    judged: NDArray[np.int64]

    @property
    def weight_of(self) -> dict[str, float]:
        """Labeller -> weight."""
        return dict(zip(self.labellers, self.weights.tolist(), strict=True))


def estimate_reliability(votes: Votes) -> LabellerReliability:
    """Estimate the reliability of all labellers of these pairs."""
    labellers = tuple(sorted({by for of_pair in votes.values() for by in of_pair}))
    number = {by: i for i, by in enumerate(labellers)}
    common = [of_pair for of_pair in votes.values() if len(of_pair) > 1]
    entries = [(i, number[by], same) for i, of_pair in enumerate(common) for by, same in of_pair.items()]
    pair, by, is_same = np.array(entries, np.int64).reshape(-1, 3).T
    hits = _fit_rates(pair, by, is_same.astype(np.bool_), len(common), len(labellers))
    rates = hits[:, 0] / hits.sum(axis=1)
    return LabellerReliability(
        labellers,
        rates[:, 0].astype(np.float32),
        rates[:, 1].astype(np.float32),
        _weigh(hits).astype(np.float32),
        np.bincount(by, minlength=len(labellers)),
    )


def compare_with_others(votes: Votes) -> dict[str, Agreement]:
    """Return labeller -> agreement with the unweighed majority of the others, for those who share a pair with them."""
    compared, agreed = Counter[str](), Counter[str]()
    for of_pair in votes.values():
        balance = sum(1 if same else -1 for same in of_pair.values())
        for by, same in of_pair.items():
            of_others = balance - (1 if same else -1)
            compared[by] += bool(of_others)
            agreed[by] += bool(of_others) and (of_others > 0) == same
    return {by: Agreement(count, agreed[by]) for by, count in compared.items() if count}


def _fit_rates(
    pair: NDArray[np.int64], by: NDArray[np.int64], is_same: NDArray[np.bool_], pairs: int, labellers: int
) -> NDArray[np.float64]:
    """Return (L, 2, 2): right and wrong answers of each labeller, the prior's included, to the two kinds of pairs.

    pair, by, is_same: (V,) the votes
    """
    prior = np.array([PRIOR_RATE, 1 - PRIOR_RATE]) * PRIOR_ANSWERS
    hits = np.broadcast_to(prior[None, :, None], (labellers, 2, 2)).copy()
    share = 0.5
    for _ in range(ITERATIONS if pairs else 0):
        rates = hits[:, 0] / hits.sum(axis=1)
        same = np.log(np.where(is_same, rates[by, 0], 1 - rates[by, 0]))
        different = np.log(np.where(is_same, 1 - rates[by, 1], rates[by, 1]))
        evidence = np.bincount(pair, same - different, pairs) + np.log(share / (1 - share))
        belief_same = 1 / (1 + np.exp(-np.clip(evidence, -50, 50)))
        share = float((belief_same.sum() + 1) / (pairs + 2))
        before = hits
        hits = np.broadcast_to(prior[None, :, None], (labellers, 2, 2)).copy()
        for kind, belief in ((0, belief_same[pair]), (1, 1 - belief_same[pair])):
            right = is_same if kind == 0 else ~is_same
            hits[:, 0, kind] += np.bincount(by, belief * right, labellers)
            hits[:, 1, kind] += np.bincount(by, belief * ~right, labellers)
        if np.abs(hits - before).max() < TOLERANCE * max(1, pairs):
            break
    return hits


def _weigh(hits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (L,) weights of labellers with these (L, 2, 2) right and wrong answers."""
    newcomer = np.array([PRIOR_RATE, 1 - PRIOR_RATE]) * PRIOR_ANSWERS
    usual = _bound_informedness(np.broadcast_to(newcomer[None, :, None], (1, 2, 2)))[0]
    weights = _bound_informedness(hits) / usual
    return np.where(weights < MIN_WEIGHT, 0.0, weights)


def _bound_informedness(hits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (L,) lower bounds of the sum of both rates minus one, which are Beta distributed."""
    total = hits.sum(axis=1)
    rates = hits[:, 0] / total
    deviation = np.sqrt((rates * (1 - rates) / (total + 1)).sum(axis=1))
    return np.asarray(rates.sum(axis=1) - 1 - WEIGHT_DEVIATIONS * deviation)
