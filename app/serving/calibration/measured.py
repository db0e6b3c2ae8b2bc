"""What the thresholds of an index were measured of, and what has gone from it since."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from app.serving.calibration.open_set_measurement import REPORTED_FPIRS
from app.serving.deployments import ServedDeployment
from app.serving.labels.constraints import hash_labels
from app.serving.loaded_index import LoadedIndex
from app.serving.scores import Scores
from ml.identification.new_hubs import Level
from ml.identification.person_distance import DecisionRule


def subtract(pairs: Mapping[int, int], others: Mapping[int, int]) -> AbstractSet[tuple[int, int]]:
    """Return the items that the others lack. Of the same mapping, which may be large, none are looked at."""
    return frozenset() if pairs is others else pairs.items() - others.items()


@dataclass(frozen=True)
class MeasuredLabels:
    """What labels said when a gallery was measured. labelled, joined: see `Measured`; is_known: whether that is all"""

    labelled: Mapping[int, int]
    joined: Mapping[int, int]
    is_known: bool = True


@dataclass(frozen=True)
class Losses:
    """What may have taken the next person from somebody who was measured.

    deleted: how many of the measured faces; changed_at: the last change of one of them, 0 if there is none
    ended: see `Measured`; unlabelled: face -> person, by labels that are gone
    joined: whom labels joined since, and whom they join no more
    are_labels_known: whether it is known what labels said when it was measured
    """

    deleted: int
    changed_at: int
    ended: int
    unlabelled: AbstractSet[tuple[int, int]]
    joined: AbstractSet[tuple[int, int]]
    are_labels_known: bool

    def __bool__(self) -> bool:
        has_lost = bool(self.deleted or self.changed_at or self.ended or self.unlabelled or self.joined)
        return has_lost or not self.are_labels_known


@dataclass(frozen=True, eq=False)
class Measured:
    """What a measurement was made of.

    change: the collection's last change by then; faces: their number
    last_face: their largest pk; 0 if not known: all that have changed since count as others
    people: how many with a name, 0 if not known
    trained_at: the change up to which the model has learned from this gallery, 0 if that is not known; None if it has
        not
    levels: the thresholds; rule: how people are scored; labelled: face without a name -> who labels say that it is
    joined: whom labels join now: see `ServedConstraints.joined_people`
    measured_labels_hash: of what labels said by then, see `hash_labels`; None if not known
    had_labels: whether they named or joined anybody by then
    ended: how many more faces than at the measurement may not be used now
    """

    change: int
    faces: int
    last_face: int
    people: int
    trained_at: int | None
    levels: Sequence[Level]
    rule: DecisionRule
    labelled: Mapping[int, int]
    joined: Mapping[int, int]
    measured_labels_hash: str | None
    had_labels: bool
    ended: int

    @classmethod
    def of(cls, served: ServedDeployment, index: LoadedIndex, scores: Scores, ended: int) -> Self:
        """Return what the thresholds of an index were measured of."""
        rates = sorted({scores.default_fpir, *REPORTED_FPIRS})
        limits = [(fpir, scores.person_threshold(fpir, index.state.vectors)) for fpir in rates]
        open_set = scores.open_set
        levels = [
            Level(
                fpir, limit.person_distance, limit.nameless_distance, limit.rule, limit.high,
                open_set.find_named_share(limit.person_distance) if open_set else 0.0,
            )
            for fpir, limit in limits
            if limit is not None
        ]  # fmt: skip
        return cls(
            scores.calibrated_at_change or 0,
            scores.calibrated_at_count,
            scores.calibrated_at_face or 0,
            scores.calibrated_at_people_count or 0,
            scores.learned_change,
            levels,
            scores.rule,
            served.constraints.constraints.labelled_subjects,
            served.constraints.joined_people,
            scores.calibrated_at_labels_hash,
            bool(scores.calibrated_at_labelled_count or scores.calibrated_at_joined_count),
            ended,
        )

    @cached_property
    def labels_hash(self) -> str:
        """Of what labels say now."""
        return hash_labels(self.labelled, self.joined)

    @property
    def are_labels_alike(self) -> bool:
        """Whether labels say now what they said when this was measured."""
        if not self.had_labels:
            return not self.labelled and not self.joined
        return self.measured_labels_hash == self.labels_hash

    def find_labels(self) -> MeasuredLabels:
        """Return what labels said when this was measured, as far as that is known."""
        if self.are_labels_alike:
            return MeasuredLabels(self.labelled, self.joined)
        return MeasuredLabels({}, {}, is_known=not self.had_labels)

    def find_losses(self, labels: MeasuredLabels, left: int, changed_at: int) -> Losses:
        """Return what may have taken the next person from somebody since.

        labels: what they said by then; left: how many of the measured faces are there
        changed_at: the last change of one of them, 0 if there is none
        """
        return Losses(
            max(0, self.faces - left),
            changed_at,
            self.ended,
            subtract(labels.labelled, self.labelled),
            subtract(labels.joined, self.joined) | subtract(self.joined, labels.joined),
            labels.is_known,
        )

    def list_owners(self, people: frozenset[int]) -> frozenset[int]:
        """Return the numbers by which searches know these people: those of whom labels joined to them too."""
        joined = dict(self.joined) | {2 * pk + 1: 2 * person for pk, person in self.labelled.items()}
        return people | {owner for owner, person in joined.items() if person in people}

    @property
    def since(self) -> int:
        """Faces that were enrolled or changed later may be hubs that were not measured."""
        return self.change if self.trained_at is None else self.trained_at
