"""The comparison of rules of choice: what each one takes, what is recorded, and the rows of its table."""

import numpy as np
import pytest

from ml.embedders.auto import Auto
from papers.beyond.mixed_conditions import MixedSplit
from papers.beyond.selection_rules import METHODS, RULES, ChoiceRule, RecordedFit, make_row, record_fit
from tests.papers.test_safe_learning import split

__all__ = ["split"]


def make_fit(*gains: tuple[float, float], labels: int = 200) -> RecordedFit:
    """A fit of 100 people held out. gains: (mean, standard error) of each candidate, from gentle to bold"""
    noise = np.sqrt(99) * np.tile([1.0, -1.0], 50)
    precision = np.array([mean + error * noise for mean, error in gains])
    return RecordedFit(
        labels, precision, np.zeros_like(precision), np.array([0.01 * (i - 1) for i in range(len(gains))])
    )


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (ChoiceRule(0.05, 0.05), 1),
        (ChoiceRule(0.05, 0.01), 0),
        (ChoiceRule(0.005, 0.05), 0),
        (ChoiceRule(0.0001, 0.05), None),
        (ChoiceRule(0.05, 0.05, margin=0.02), None),
    ],
)
def test_the_level_decides_what_is_better_and_the_ranking_which_of_it_is_taken(
    rule: ChoiceRule, expected: int | None
) -> None:
    assert rule.choose(make_fit((0.0091, 0.0029), (0.0140, 0.0051))) == expected


def test_a_sequence_stops_at_the_first_candidate_that_is_not_better() -> None:
    fit = make_fit((0.0, 0.01), (0.1, 0.01))
    assert ChoiceRule(0.05, 0.05).choose(fit) == 1
    assert ChoiceRule(0.05, 0.05, "in sequence").choose(fit) is None


def test_a_row_counts_the_losses() -> None:
    fits = [make_fit((0.1, 0.01)), make_fit((0.0, 0.01), labels=1000)]
    assert make_row("5 %", ChoiceRule(0.05, 0.05), fits) == "| 5 % | 1 | 1 | 1 | -1.00 | -1.00 | +0.00 |"


def test_the_rule_of_the_service_chooses_from_a_recording_what_auto_chooses(split: MixedSplit) -> None:
    fit = record_fit(split, 200)
    learned = Auto.from_options(methods=METHODS).fit(split.draw_training_set(200))
    names = [trial["name"] for trial in learned.notes["choice"]["candidates"]]
    chosen = RULES["5 % shared; ranked at the shared level"].choose(fit)
    assert chosen is not None
    assert names[chosen] == learned.notes["choice"]["candidate"]
    assert fit.gains[chosen] > 0.1
