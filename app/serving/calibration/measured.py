"""What the thresholds of an index were measured of, and what has gone from it since."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Self

from app.serving.calibration.open_set_measurement import REPORTED_FPIRS
from app.serving.deployments import ServedDeployment
from app.serving.loaded_index import LoadedIndex
from app.serving.scores import Scores
from ml.identification.new_hubs import Level
from ml.identification.person_distance import DecisionRule


@dataclass(frozen=True, eq=False)
class Measured:
    """What a measurement was made of.

    change: the collection's last change by then; faces: their number
    last_face: their largest pk; 0 if not known: all that have changed since count as others
    people: how many with a name, 0 if not known
    trained_at: the change up to which the model has learned from this gallery, 0 if that is not known; None if it has
        not
    levels: the thresholds; rule: how people are scored; labelled: face without a name -> who labels say that it is
    is_labelled_alike: whether as many faces had names by labels alone
    joined: whom labels join now: see `ServedConstraints.joined_people`
    is_joined_alike: whether they joined as many
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
    is_labelled_alike: bool
    joined: Mapping[int, int]
    is_joined_alike: bool
    ended: int

    @classmethod
    def of(cls, served: ServedDeployment, index: LoadedIndex, scores: Scores, ended: int) -> Self:
        """Return what the thresholds of an index were measured of."""
        labelled = served.constraints.constraints.labelled_subjects
        rates = sorted({scores.default_fpir, *REPORTED_FPIRS})
        limits = [(fpir, scores.person_threshold(fpir, index.state.vectors)) for fpir in rates]
        levels = [
            Level(fpir, limit.person_distance, limit.nameless_distance, limit.rule, limit.high)
            for fpir, limit in limits
            if limit is not None
        ]
        return cls(
            scores.calibrated_at_change or 0,
            scores.calibrated_at_count,
            scores.calibrated_at_face or 0,
            scores.calibrated_at_people_count or 0,
            scores.learned_change,
            levels,
            scores.rule,
            labelled,
            scores.calibrated_at_labelled_count == len(labelled),
            served.constraints.joined_people,
            scores.calibrated_at_joined_count == len(served.constraints.joined_people),
            ended,
        )

    def find_labels(self) -> frozenset[int]:
        """Return the faces that labels named when this was measured, as far as that is known."""
        return frozenset(self.labelled if self.is_labelled_alike else ())

    def find_joined(self) -> AbstractSet[tuple[int, int]]:
        """Return whom labels joined when this was measured, as far as that is known."""
        return self.joined.items() if self.is_joined_alike else frozenset()

    def list_owners(self, people: frozenset[int]) -> frozenset[int]:
        """Return the numbers by which searches know these people: those of whom labels joined to them too."""
        joined = dict(self.joined) | {2 * pk + 1: 2 * person for pk, person in self.labelled.items()}
        return people | {owner for owner, person in joined.items() if person in people}

    @property
    def since(self) -> int:
        """Faces that were enrolled or changed later may be hubs that were not measured."""
        return self.change if self.trained_at is None else self.trained_at


@dataclass(frozen=True)
class Losses:
    """What may have taken the next person from somebody who was measured.

    deleted: how many of the measured faces; changed_at: the last change of one of them, 0 if there is none
    ended: see `Measured`; joined: whom labels joined since
    """

    deleted: int
    changed_at: int
    ended: int
    joined: AbstractSet[tuple[int, int]]

    def __bool__(self) -> bool:
        return bool(self.deleted or self.changed_at or self.ended or self.joined)
