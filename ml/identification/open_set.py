"""From the rate at which strangers may be named to the distance at which a search names somebody.

FPIR, the false positive identification rate, is the share of searches for people who are not enrolled that name
somebody (ISO/IEC 19795-1). It is a rate of searches in one gallery, not of pairs, and grows with the gallery.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ml.calibration import ImpostorDistances
from ml.errors import Corrupt, WrongShape
from ml.identification.decision_rule import NEAREST_FACE, DecisionRule
from ml.identification.stranger_searches import MIN_STRANGERS, StrangerSearches

Floats = NDArray[np.float64]
Evidence = Literal["leave-one-out", "held-out", "distractors", "pairs"]

POSSIBLE_FACTOR, MAX_POSSIBLE_FPIR = 10.0, 0.3
"""A person is "possible" at ten times the rate of a match, but never at a rate above 30 %."""
PAIRS_SAFETY, LEARNED_SAFETY = 2.0, 3.0
"""Pairs are taken at half the rate, since nearest faces of small galleries let 1.4 times as many strangers pass as
independent pairs would; pairs that a model has learned from at a third."""
MIN_PAIRS = 200
"""Below so many impostor pairs their tail says too little to be extended."""


def fpir_at_size(fpir: float, measured_faces: int, faces: int) -> float:
    """The FPIR at another gallery size, each face being as likely to raise a false alarm: 1 - (1 - fpir)^(N / N0)."""
    return -math.expm1(faces / max(1, measured_faces) * math.log1p(-min(fpir, 1 - 1e-12)))


@dataclass(frozen=True)
class PersonThreshold:
    """A search names the nearest person where the person distance is at most `person_distance`.

    fpir: the rate asked for; possible_distance: up to here a person is worth a look (ten times the rate)
    low, high: 95 % interval of the rate that is really to be expected here; None where only pairs are known
    enough: whether searches carry it; else it comes from pairs, on the safe side, and `more_people` says how many
        more enrolled people it would take
    """

    fpir: float
    person_distance: float
    possible_distance: float
    low: float | None
    high: float | None
    enough: bool
    rule: DecisionRule
    source: Evidence
    people: int
    searches: int
    measured_faces: int
    more_people: int


@dataclass(frozen=True)
class OpenSetCalibration:
    """How strangers score against one gallery, by one decision rule.

    strangers: searches from one or two sources; optimistic: whether the model has learned the very people whose pairs
        are known, so that pairs look further apart than those of strangers
    """

    rule: DecisionRule
    strangers: tuple[StrangerSearches, ...] = ()
    optimistic: bool = False

    def threshold(self, fpir: float, faces: int, pairs: tuple[ImpostorDistances, ...] = ()) -> PersonThreshold | None:
        """The threshold for a rate (0 to 1) in a gallery of so many faces now; None where nothing is known.

        Of several sources with enough searches the strictest counts: one that is nearer to harmless is optimistic.
        Where none has enough, each face is taken for an independent chance of a false match, 1 - (1 - fmr)^N, at half
        the rate, which names fewer strangers than asked for. Raises WrongShape.
        """
        if not 0 < fpir < 1:
            raise WrongShape("fpir", "above 0 and below 1", fpir)
        enough = [s for s in self.strangers if s.is_enough(_rate_at_measured(s, fpir, faces))]
        if enough:
            return min((self._from_searches(s, fpir, faces) for s in enough), key=lambda t: t.person_distance)
        return self._from_pairs(fpir, faces, pairs)

    def _from_searches(self, searches: StrangerSearches, fpir: float, faces: int) -> PersonThreshold:
        distance, low, high = searches.threshold(_rate_at_measured(searches, fpir, faces))
        possible = searches.threshold(_rate_at_measured(searches, possible_fpir(fpir), faces))[0]
        return PersonThreshold(
            fpir, distance, max(distance, possible),
            fpir_at_size(low, searches.gallery_faces, faces), fpir_at_size(high, searches.gallery_faces, faces),
            True, self.rule, searches.source, searches.people, searches.searches, searches.gallery_faces, 0,
        )  # fmt: skip

    def _from_pairs(self, fpir: float, faces: int, pairs: tuple[ImpostorDistances, ...]) -> PersonThreshold | None:
        scale = LEARNED_SAFETY if self.optimistic else PAIRS_SAFETY
        tail_distances = [_tail_distance(p, fpir / scale, faces) for p in pairs]
        distances = [d for d in tail_distances if d is not None]
        if not distances:
            return None
        loose = [_tail_distance(p, possible_fpir(fpir) / scale, faces) for p in pairs]
        possible = min(d for d in loose if d is not None)
        largest = max(self.strangers, key=lambda s: s.people, default=None)
        people, searches, measured = (largest.people, largest.searches, largest.gallery_faces) if largest else (0, 0, 0)
        missing = largest.missing_people(fpir) if largest else math.ceil(MIN_STRANGERS)
        return PersonThreshold(
            fpir, min(distances), max(min(distances), possible), None, None,
            False, NEAREST_FACE, "pairs", people, searches, measured, missing,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> Self:
        """What `to_dict` gave, through JSON or not. Raises Corrupt."""
        try:
            strangers = tuple(StrangerSearches.from_dict(s) for s in kept["strangers"])
            return cls(DecisionRule.from_dict(kept["rule"]), strangers, bool(kept["optimistic"]))
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"this is not an open-set calibration: {error}") from error


def possible_fpir(fpir: float) -> float:
    """The rate of the shortlist that goes with a decision at `fpir`."""
    return max(fpir, min(POSSIBLE_FACTOR * fpir, MAX_POSSIBLE_FPIR))


def _rate_at_measured(searches: StrangerSearches, fpir: float, faces: int) -> float:
    """What rate in the gallery as it was measured gives `fpir` in one of `faces` now. A smaller gallery is not trusted
    with more: its people lie further from the next one, whose lead counts."""
    return min(fpir, fpir_at_size(fpir, max(1, faces), searches.gallery_faces))


def _tail_distance(impostors: ImpostorDistances, fpir: float, faces: int) -> float | None:
    """The nearest-face distance at which independent pairs give this FPIR; beyond the pairs seen, their lower tail is
    extended by the steps of its last decade, which falls faster than a bell curve's and so stays on the safe side."""
    fmr = fpir_at_size(fpir, max(1, faces), 1)
    if impostors.n < MIN_PAIRS:
        return None
    known = 10 / impostors.n
    if fmr >= known:
        return impostors.threshold(min(fmr, 1.0)).distance
    last, before = (float(np.interp(c, impostors.counts, impostors.distances)) for c in (10, 100))
    return last - max(0.0, before - last) * math.log10(known / fmr)
