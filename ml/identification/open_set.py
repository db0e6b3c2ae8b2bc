"""Choose the person distance at which a search names somebody, for a given rate of strangers named (FPIR).

FPIR, the false positive identification rate, is the share of searches for people who are not enrolled that name
somebody (ISO/IEC 19795-1). It is a rate of searches, not of pairs, and it grows with the gallery.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ml.calibration import ImpostorDistances, NamedPairs, extrapolate_tail
from ml.errors import Corrupt, WrongShape
from ml.identification.nearness_shift import NearnessShift
from ml.identification.person_distance import NEAREST_FACE, DecisionRule
from ml.identification.stranger_searches import MAX_INTERVAL_RATIO, MIN_STRANGERS, StrangerSearches, fpir_at_size

Floats = NDArray[np.float64]
Evidence = Literal["leave-one-out", "held-out", "distractors", "pairs"]

POSSIBLE_FACTOR, MAX_POSSIBLE_FPIR = 10.0, 0.3
"""A person is "possible" at ten times the rate of a match, but never at a rate above 30 %."""
PAIRS_SAFETY, LEARNED_SAFETY = 2.0, 3.0
"""Thresholds from pairs use half the requested rate, because in small galleries 1.4 times as many strangers pass as
independent pairs would predict. With pairs that the model has learned from, they use a third of it."""
MIN_GALLERY_SHARE = 0.5
"""Of the faces that searches were measured among, so many must be left. Among fewer people strangers have a larger lead
over the next person, and more of them are named."""
NOTHING_MATCHES = (-math.inf, -math.inf)
VERSION, HELD_OUT_VERSION = 9, 7
"""Of the measurement of a gallery, and of the searches of a training. 1 to 4: a search might end before it knew the
next people, people held out of a training had the distances of the fit without them, or they were searched for in
several collections at once, or a person's faces without a name hid everybody else, by 768 of them even in versions 5
and 6, which also left out people with more than 200 faces. Too many strangers were named. 5: it was not stored what the
model had learned of the gallery. 7: people from whom it has learned were not searched for. 8: a first model counted as
one that has learned from nobody."""


class NameCounts(NamedTuple):
    """How many faces of a gallery have a name, and how many have none, distractors included: at most, each."""

    named: int
    nameless: int


@dataclass(frozen=True)
class PersonThreshold:
    """A threshold of the person distance, up to which a search names the nearest person.

    fpir: the requested rate; possible_distance: threshold for "possible" matches, at ten times the rate
    nameless_distance, nameless_possible_distance: the same for faces without a name, up to the distance of the face.
        They come from pairs: a face that may show anybody, the probe's person too, tells nothing of strangers. -inf if
        too few pairs were measured
    low, high: 95 % interval of the rate to be expected here; None if the threshold comes from pairs. In a gallery of
        another size, the rate lies between that at the measured size and what independent faces would make of it: with
        fewer people, strangers also have a larger lead over the next person
    enough: whether the threshold is supported by searches. Otherwise it is a cautious one from pairs, or one from
        distractors or newcomers whom so few people confirm that the rate may be three times as high as requested;
        `more_people` is the number of further enrolled people that would be needed
    source: what the threshold was derived from; people, searches: their numbers; measured_faces: size of the gallery
        when it was measured
    """

    fpir: float
    person_distance: float
    possible_distance: float
    nameless_distance: float
    nameless_possible_distance: float
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
    """The person distances of strangers in one gallery, under one decision rule.

    strangers: searches from one or two sources
    newcomer_share: of the people's faces, those that came after the training that held people out, in which everybody
        weighs alike; 0: none, or not known
    left_share: of the faces among which people held out were searched for, those that are still there
    named_pairs: of this gallery; None: not measured, or the model has learned from its people
    with_learned: searches for all people, those from whom the model has learned too; None: it has learned from none
    optimistic: whether the model has learned from the people of the pairs, so that their distances are too large
    version: by which version it was measured, see VERSION
    """

    rule: DecisionRule
    strangers: tuple[StrangerSearches, ...] = ()
    optimistic: bool = False
    version: int = VERSION
    newcomer_share: float = 0.0
    left_share: float = 1.0
    named_pairs: NamedPairs | None = None
    with_learned: StrangerSearches | None = None

    def threshold(
        self,
        fpir: float,
        faces: int,
        pairs: tuple[ImpostorDistances, ...] = (),
        names: NameCounts | None = None,
    ) -> PersonThreshold | None:
        """Return the threshold for a rate (0..1) in a gallery that now has `faces` faces; None if there is no evidence.

        pairs: of any faces, of this gallery and of others; names: None: not known, and all may have one or none

        If several sources have enough searches, the strictest threshold is used. They do not decide alone, since
        strangers may rather be like others, of whom there are few: see `_compare_with_others`. People held out stand
        for all but the newcomers, whose share of the strangers is taken to be that of the people, unless people from
        whom the model has learned are nearer: see `_heed_learned`. If no source has enough, or if the gallery has
        shrunk too much since (see MIN_GALLERY_SHARE), the threshold is derived from pairs as if each face were an
        independent chance of a false match, 1 - (1 - fmr)^N, at half the rate; this names fewer strangers than
        requested. Raises WrongShape.
        """
        _check_rate(fpir)
        min_share = MIN_GALLERY_SHARE if self.rule.margin_weight else 0.0
        comparable = [s for s in self.strangers if faces >= min_share * s.gallery_faces]
        enough = [s for s in comparable if s.is_enough(_rate_at_measured(s, fpir, faces))]
        if not enough:
            return self.pairs_threshold(fpir, faces, pairs, names)
        nameless = self._find_face_distances(fpir, names.nameless if names else faces, pairs) or NOTHING_MATCHES
        supported = {s: self._from_searches(s, fpir, faces, nameless) for s in enough}
        measured = min(enough, key=lambda s: supported[s].person_distance)
        others = [s for s in comparable if s not in enough and s.source != "distractors"]
        if any(s.source == "held-out" for s in enough):
            chosen: PersonThreshold | None = self._mix_with_newcomers(supported[measured], measured, others, faces)
        elif others:
            chosen = self._compare_with_others(supported[measured], measured, enough, others, faces)
        else:
            chosen = supported[measured]
        return (
            self._heed_learned(chosen, measured, faces) if chosen else self.pairs_threshold(fpir, faces, pairs, names)
        )

    def _compare_with_others(
        self,
        supported: PersonThreshold,
        measured: StrangerSearches,
        enough: Sequence[StrangerSearches],
        others: Sequence[StrangerSearches],
        faces: int,
    ) -> PersonThreshold | None:
        """Return the strictest of a threshold that enough searches support, and those that a few others estimate.

        Distractors may all be of a poorer camera than the people of the gallery, or those who came after a training of
        a poorer one than those before. The interval covers strangers like either. A rate that the others cannot
        estimate has no larger distance than the least rate that they can. Returns None if more of the others come as
        near than the interval allows, or if nothing tells how near they come.

        measured: the searches that the threshold comes from
        """
        nameless = supported.nameless_distance, supported.nameless_possible_distance
        estimates, limit = [supported], math.inf
        for searches in others:
            shift = NearnessShift.between(measured, searches)
            if shift is None or not shift.is_bounded:
                return None
            estimates.append(self._from_searches(measured, supported.fpir, faces, nameless, shift))
            if searches.can_estimate(_rate_at_measured(searches, supported.fpir, faces)):
                estimates.append(self._from_searches(searches, supported.fpir, faces, nameless))
            else:
                limit = min(limit, searches.threshold(1 / searches.people)[0])
        strictest = min(estimates, key=lambda t: t.person_distance)
        distance, high = min(limit, strictest.person_distance), max(t.high or 0.0 for t in estimates)
        if any(s.least_share_within(distance) > high for s in others):
            return None
        low = min(*(t.low or 0.0 for t in estimates), *(s.least_share_within(distance) for s in enough))
        return _judge_evidence(replace(strictest, person_distance=distance, low=low, high=high), others)

    def _mix_with_newcomers(
        self,
        supported: PersonThreshold,
        measured: StrangerSearches,
        newcomers: Sequence[StrangerSearches],
        faces: int,
    ) -> PersonThreshold:
        """Return the strictest of the threshold, and of those for strangers who are, by their share, like newcomers.

        If those who have gone were never named, strangers like those who are left are named more often than all are, by
        the inverse of their share.

        newcomers: their searches, too few to support a threshold
        """
        nameless = supported.nameless_distance, supported.nameless_possible_distance
        shifts = [NearnessShift.between(measured, s) for s in newcomers] if self.newcomer_share else []
        mixed = [
            self._from_searches(measured, supported.fpir, faces, nameless, shift, self.newcomer_share)
            for shift in shifts
            if shift is not None
        ]
        strictest = min([*mixed, supported], key=lambda t: t.person_distance)
        high = min(1.0, (strictest.high or 1.0) / self.left_share)
        return _judge_evidence(replace(strictest, high=high), newcomers)

    def _heed_learned(self, threshold: PersonThreshold, measured: StrangerSearches, faces: int) -> PersonThreshold:
        """Return the threshold, or a stricter one for strangers like all people of the gallery as it is.

        A model keeps the people whom it has learned from farther apart than strangers. If these come nearer than those
        did whom the threshold comes from, the gallery is another one: many have lost their good photos, as it may be.
        Few such people count as the others in `_compare_with_others` do.
        """
        searches = self.with_learned
        if searches is None or faces < MIN_GALLERY_SHARE * searches.gallery_faces:
            return threshold
        rate = _rate_at_measured(searches, threshold.fpir, faces)
        is_enough, nameless = (
            searches.is_enough(rate),
            (threshold.nameless_distance, threshold.nameless_possible_distance),
        )
        own = self._from_searches(searches, threshold.fpir, faces, nameless)
        if not searches.can_estimate(rate):
            own = replace(own, person_distance=searches.threshold(1 / searches.people)[0])
        shift = None if is_enough else NearnessShift.between(measured, searches)
        shifted = [self._from_searches(measured, threshold.fpir, faces, nameless, shift)] if shift else []
        stricter = min([own, *shifted], key=lambda t: t.person_distance)
        if stricter.person_distance >= threshold.person_distance:
            return threshold
        heeded = replace(
            threshold,
            person_distance=stricter.person_distance,
            possible_distance=min(threshold.possible_distance, stricter.possible_distance),
            low=min(stricter.low or 0.0, measured.least_share_within(stricter.person_distance)),
            high=max(threshold.high or 0.0, stricter.high or 0.0),
        )
        return heeded if is_enough else _judge_evidence(heeded, [searches])

    def find_named_share(self, distance: float) -> float:
        """Return the share of enrolled people who were named, though as strangers, up to this person distance: the
        upper end of its interval. Of some, another photo is enrolled under another name."""
        searches = self.with_learned or next((s for s in self.strangers if s.source == "leave-one-out"), None)
        return searches.greatest_share_within(distance) if searches else 0.0

    def _from_searches(
        self,
        searches: StrangerSearches,
        fpir: float,
        faces: int,
        nameless: tuple[float, float],
        shift: NearnessShift | None = None,
        weight: float = 1.0,
    ) -> PersonThreshold:
        """Return the threshold that searches tell, of strangers like them or, by a shift, of a mixture with others.

        weight: the share of the others
        """
        rates = [_rate_at_measured(searches, rate, faces) for rate in (fpir, possible_fpir(fpir))]
        if shift is not None:
            rates = [shift.find_measured_share(rate, weight) for rate in rates]
        distance, low, high = searches.threshold(rates[0])
        possible = searches.threshold(rates[1])[0]
        if shift is not None:
            low, high = shift.interval(rates[0], low, high, weight)
        ends = [(end, fpir_at_size(end, searches.gallery_faces, faces)) for end in (low, high)]
        return PersonThreshold(
            fpir, distance, max(distance, possible), *nameless,
            min(ends[0]), max(ends[1]),
            True, self.rule, searches.source, searches.people, searches.searches, searches.gallery_faces, 0,
        )  # fmt: skip

    def pairs_threshold(
        self,
        fpir: float,
        faces: int,
        pairs: tuple[ImpostorDistances, ...],
        names: NameCounts | None = None,
    ) -> PersonThreshold | None:
        """Return the threshold from pairs alone, for searches unlike the measured ones; None if there are too few.

        The nearest face alone decides, so that a search that misses faces names nobody more for it. Who is named is
        decided by the pairs of faces with a name, if these are enough. Raises WrongShape.

        pairs, names: see `threshold`
        """
        _check_rate(fpir)
        distances = self._find_face_distances(fpir, faces, pairs)
        if distances is None:
            return None
        named = self._find_named_distances(fpir, names.named if names else faces) or distances
        largest = max(self.strangers, key=lambda s: s.people, default=None)
        people, searches, measured = (largest.people, largest.searches, largest.gallery_faces) if largest else (0, 0, 0)
        missing = largest.missing_people(fpir) if largest else math.ceil(MIN_STRANGERS)
        return PersonThreshold(
            fpir, *named, *distances, None, None,
            False, NEAREST_FACE, "pairs", people, searches, measured, missing,
        )  # fmt: skip

    def _find_named_distances(self, fpir: float, faces: int) -> tuple[float, float] | None:
        """Return up to which distances a face with a name matches, and possibly matches, a stranger at this rate.

        faces: how many have a name; returns None if the pairs of these are too few, or were not measured
        """
        if self.named_pairs is None:
            return None
        matching, possible = (
            self.named_pairs.find_distance(_rate_of_pairs(rate / PAIRS_SAFETY, faces))
            for rate in (fpir, possible_fpir(fpir))
        )
        return None if matching is None or possible is None else (matching, max(matching, possible))

    def _find_face_distances(
        self, fpir: float, faces: int, pairs: tuple[ImpostorDistances, ...]
    ) -> tuple[float, float] | None:
        """Return up to which distances a face matches, and possibly matches, a stranger at this rate.

        faces: how many may match; returns None if too few pairs were measured
        """
        scale = LEARNED_SAFETY if self.optimistic else PAIRS_SAFETY
        matching, possible = (
            min(
                (d for p in pairs if (d := extrapolate_tail(p, _rate_of_pairs(rate / scale, faces))) is not None),
                default=None,
            )
            for rate in (fpir, possible_fpir(fpir))
        )
        return None if matching is None or possible is None else (matching, max(matching, possible))

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> Self:
        """Restore what `to_dict` returned, through JSON or not. Raises Corrupt."""
        try:
            strangers = tuple(StrangerSearches.from_dict(s) for s in kept["strangers"])
            rule, version = DecisionRule.from_dict(kept["rule"]), int(kept.get("version", 1))
            shares = float(kept.get("newcomer_share", 0.0)), float(kept.get("left_share", 1.0))
            named_pairs = NamedPairs.from_dict(kept["named_pairs"]) if kept.get("named_pairs") else None
            with_learned = StrangerSearches.from_dict(kept["with_learned"]) if kept.get("with_learned") else None
            return cls(rule, strangers, bool(kept["optimistic"]), version, *shares, named_pairs, with_learned)
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"this is not an open-set calibration: {error}") from error


def _judge_evidence(threshold: PersonThreshold, others: Sequence[StrangerSearches]) -> PersonThreshold:
    """Return the threshold with `enough` false if few others leave it open whether the rate is several times as high.

    It is true while the interval reaches no further above the requested rate than one around it whose ends have the
    ratio MAX_INTERVAL_RATIO.
    """
    if threshold.high is None or threshold.high <= math.sqrt(MAX_INTERVAL_RATIO) * threshold.fpir:
        return threshold
    missing = max(1, math.ceil(MIN_STRANGERS) - max((s.people for s in others), default=0))
    return replace(threshold, enough=False, more_people=missing)


def _check_rate(fpir: float) -> None:
    if not 0 < fpir < 1:
        raise WrongShape("fpir", "above 0 and below 1", fpir)


def possible_fpir(fpir: float) -> float:
    """Return the rate for "possible" matches that goes with a decision at `fpir`."""
    return max(fpir, min(POSSIBLE_FACTOR * fpir, MAX_POSSIBLE_FPIR))


def _rate_at_measured(searches: StrangerSearches, fpir: float, faces: int) -> float:
    """Return the rate in the gallery as measured that corresponds to `fpir` in a gallery of `faces` faces.

    The rate is not raised for a smaller gallery, because there the lead over the next person is larger.
    """
    return min(fpir, fpir_at_size(fpir, max(1, faces), searches.gallery_faces))


def _rate_of_pairs(fpir: float, faces: int) -> float:
    """Return the rate of false matches of a pair at which independent faces would make up this rate of searches."""
    return max(fpir_at_size(fpir, max(1, faces), 1), sys.float_info.min)
