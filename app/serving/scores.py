"""Convert distances of a deployment to similarities, probabilities and false-match rates, and choose its thresholds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from app.db.tables import DEFAULT_FPIR
from app.galleries.learned_collections import is_calibrated_on_learned
from app.galleries.measurements import DEFAULT_FMR, Measurement
from ml.calibration import Calibration, DistanceThreshold
from ml.distances import Distance
from ml.identification.open_set import VERSION, NameCounts, OpenSetCalibration, PersonThreshold
from ml.identification.person_distance import DecisionRule
from ml.indexes import OperatingPoint
from ml.model import Model

Floats = NDArray[np.float64]
Distances = NDArray[np.float32] | NDArray[np.float64]
MAX_DISTANCE = 1e30
KEPT_THRESHOLDS = 16


@dataclass(frozen=True)
class Scores:
    """The calibration of one model in one collection, as searches use it.

    calibration: of this gallery (see `gallery_calibration.measure_gallery`), otherwise the model's own; None: there are
        no similarities, and nothing passes or fails
    calibrated_at_count: the number of faces in the gallery when it was calibrated; 0 if it was not, or is superseded
    is_superseded: whether it is to be calibrated anew, however few faces there are: an older version did it, which
        stored no confidence intervals or searched for too few of the next people, or it holds for other embeddings
    calibrated_at_named_count: of these, the faces with a name, by labels too; None: not known
    calibrated_at_labelled_count: of these, the faces that only labels name
    calibrated_at_refused_count, calibrated_at_joined_count: see `Measurement.refused_faces` and `joined_people`
    calibrated_at_labels_hash: see `Measurement.labels_hash`
    calibrated_at_people_count, calibrated_at_subject_count: see `Measurement.people` and `subjects`
    calibrated_at_change, calibrated_at_face: the collection's last change, and the largest pk of its faces, by then;
        None: not known
    learned_change: see `Measurement.learned_change`
    curve: recall and latency by rising m; empty if it was not measured
    candidates: how many faces a second stage ranks; None: the index has one stage, or none was measured
    open_set: how strangers score against this gallery; None: only pairs were measured
    reference: the model's own calibration, from other people; None if it has none. Its rates are without evidence if
        its pairs are of people from whom the model has learned
    is_reference_of_learned: whether they are
    """

    metric: Distance
    calibration: Calibration | None = None
    default_fmr: float = DEFAULT_FMR
    calibrated_at_count: int = 0
    is_superseded: bool = False
    calibrated_at_named_count: int | None = None
    calibrated_at_labelled_count: int = 0
    calibrated_at_refused_count: int = 0
    calibrated_at_joined_count: int = 0
    calibrated_at_labels_hash: str | None = None
    calibrated_at_people_count: int | None = None
    calibrated_at_subject_count: int = 0
    calibrated_at_change: int | None = None
    calibrated_at_face: int | None = None
    learned_change: int | None = None
    curve: tuple[OperatingPoint, ...] = ()
    default_fpir: float = DEFAULT_FPIR
    open_set: OpenSetCalibration | None = None
    reference: Calibration | None = None
    is_reference_of_learned: bool = False
    candidates: int | None = None

    @classmethod
    def of(
        cls,
        stored: Mapping[str, Any] | None,
        model: Model,
        task: str,
        default_fpir: float = DEFAULT_FPIR,
    ) -> Self:
        """Read what `gallery_calibration.measure_gallery` stored; None means that nothing was measured here."""
        measured = Measurement.from_dict(stored or {})
        own, open_set = measured.calibration, measured.open_set
        reference, is_of_learned = model.calibrations.get(task), is_calibrated_on_learned(model.provenance, task)
        if reference is not None and is_of_learned:
            reference = replace(reference, impostors=reference.impostors.without_evidence())
        has_no_intervals = own is not None and not own.impostors.effective
        is_superseded = has_no_intervals or (open_set is not None and open_set.version < VERSION)
        return cls(
            metric=model.metric,
            calibration=own or reference,
            default_fmr=measured.default_fmr,
            calibrated_at_count=0 if is_superseded else measured.faces,
            is_superseded=is_superseded,
            calibrated_at_named_count=measured.named_faces,
            calibrated_at_labelled_count=measured.labelled_faces,
            calibrated_at_refused_count=measured.refused_faces,
            calibrated_at_joined_count=measured.joined_people,
            calibrated_at_labels_hash=measured.labels_hash,
            calibrated_at_people_count=measured.people,
            calibrated_at_subject_count=measured.subjects,
            calibrated_at_change=measured.change,
            calibrated_at_face=measured.last_face,
            learned_change=measured.learned_change,
            curve=measured.curve,
            default_fpir=default_fpir,
            open_set=open_set,
            reference=reference,
            is_reference_of_learned=is_of_learned,
            candidates=measured.candidates,
        )

    def similarity(self, distances: Distances) -> Floats | None:
        """Return 100 x the probability of one person at a prior of 0.5, from 0 to 100; None if not calibrated."""
        return None if self.calibration is None else 100 * self.calibration.probability(distances.astype(np.float64))

    def distance(self, similarity: float) -> float | None:
        """Return the distance at that similarity, clipped to be finite; None if not calibrated."""
        if self.calibration is None:
            return None
        return float(np.clip(self.calibration.distance(similarity), -MAX_DISTANCE, MAX_DISTANCE))

    @property
    def rule(self) -> DecisionRule:
        """How person distances are computed here."""
        return self.open_set.rule if self.open_set else DecisionRule()

    def person_threshold(self, fpir: float | None, faces: int, is_partial: bool = False) -> PersonThreshold | None:
        """Return the threshold on person distances at this false positive identification rate or the default one.

        faces: the size of the gallery; is_partial: for a search that looks at fewer faces than the measured ones, and
            may miss the next person or a distractor: it comes from pairs
        Returns None if neither searches nor pairs were measured.
        """
        return self._find_person_threshold(fpir or self.default_fpir, max(1, faces), is_partial)

    @cached_property
    def _find_person_threshold(self) -> Callable[[float, int, bool], PersonThreshold | None]:
        """Keeps the latest: all searches ask at one rate, and the interval takes longer than a search of the index."""
        known = self.open_set or OpenSetCalibration(DecisionRule())
        is_own_known = known.named_pairs is None or not known.named_pairs.is_of_few_people
        calibrations = (self.calibration if is_own_known else None, self.reference)
        if self.is_reference_of_learned and calibrations[0] in (None, self.reference):
            known = replace(known, optimistic=True)
        pairs = tuple({id(c): c.impostors for c in calibrations if c is not None}.values())
        return lru_cache(KEPT_THRESHOLDS)(
            lambda fpir, faces, is_partial: (known.pairs_threshold if is_partial else known.threshold)(
                fpir, faces, pairs, self._count_names(faces)
            )
        )

    def _count_names(self, faces: int) -> NameCounts | None:
        """Return how many faces have a name, and how many have none, at most; None if it was not measured.

        Until it is measured again, faces that have come may be either, and so may those that have gone.
        """
        measured, named = self.calibrated_at_count, self.calibrated_at_named_count
        if named is None:
            return None
        return NameCounts(named + max(0, faces - measured), max(faces, measured) - named)

    def probability(self, distances: Distances) -> Floats | None:
        """Return the probability of one person at a prior of 0.5; None if not calibrated."""
        return None if self.calibration is None else self.calibration.probability(distances.astype(np.float64))

    def fmr(self, distances: Distances) -> Floats | None:
        """Return the share of this gallery's impostor pairs that are at least as near; None if not calibrated."""
        return None if self.calibration is None else self.calibration.fmr_estimate(distances.astype(np.float64))

    def threshold(self, fmr: float | None = None) -> DistanceThreshold | None:
        """Return the threshold on distances at this false-match rate or the default one; None if not calibrated."""
        if fmr is None or self.calibration is None:
            return self._default
        return self.calibration.threshold(fmr)

    @cached_property
    def _default(self) -> DistanceThreshold | None:
        return None if self.calibration is None else self.calibration.threshold(self.default_fmr)
