"""What more labels are worth: the expected gain, and a bound at which to stop.

Both follow from the last training whose gain was measured on people held out. The expectation assumes that each
doubling of the labels gains as much as the one before. The bound assumes only that returns diminish: no later label is
worth more than the mean label of that step, at the upper end of the step's interval.
"""

from dataclasses import dataclass

import numpy as np

NEXT_LABELS = 50
"""Labels of which the gain is stated."""
FIRST_DOUBLING_LABELS = 50
"""Added to numbers of labels in the logarithmic curve, so that it starts at 0 labels."""
STOP_POINTS = 0.2
"""More labels are not worth while if NEXT_LABELS of them are worth at most so many points of mAP."""


@dataclass(frozen=True)
class MeasuredStep:
    """The gain of a training, in points of mAP with its 95 % interval, over the model with fewer labels."""

    labels_before: int
    labels_after: int
    gain: float
    low: float
    high: float


@dataclass(frozen=True)
class LabelOutlook:
    """What the next labels are worth, in points of mAP.

    expected: of `next_labels` labels; at_most: the bound; enough: whether the bound is below STOP_POINTS
    """

    labels: int
    next_labels: int
    expected: float
    at_most: float
    enough: bool

    @property
    def expected_per_label(self) -> float:
        return self.expected / self.next_labels


def forecast(step: MeasuredStep, labels: int, next_labels: int = NEXT_LABELS) -> LabelOutlook:
    """Forecast the gain of the next labels.

    step: the last measured one, with labels_after > labels_before; labels: number of labels now
    """
    per_doubling = step.gain / _count_doublings(step.labels_before, step.labels_after)
    expected = max(0.0, per_doubling * _count_doublings(labels, labels + next_labels))
    per_label = max(0.0, step.high) / (step.labels_after - step.labels_before)
    at_most = per_label * next_labels
    return LabelOutlook(labels, next_labels, min(expected, at_most), at_most, at_most <= STOP_POINTS)


def _count_doublings(before: int, after: int) -> float:
    return float(np.log2((after + FIRST_DOUBLING_LABELS) / (before + FIRST_DOUBLING_LABELS)))
