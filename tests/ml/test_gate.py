"""The rule by which a candidate may take a baseline's place."""

from dataclasses import replace

import numpy as np
import pytest

from ml.errors import Corrupt
from ml.evaluation.comparisons.gate_rule import MIN_PEOPLE, judge
from ml.evaluation.comparisons.models import Difference, ModelComparison, compare_rankings
from ml.evaluation.intervals import Interval
from ml.evaluation.protocols import Protocol
from ml.evaluation.report import rank_protocol
from ml.evaluation.retrieval import Ranked


def ranked(spread: float, people: int = 80, seed: int = 0) -> Ranked:
    """Rank three photos of each person, scattered about the person's centre; a greater spread is worse."""
    draw = np.random.default_rng(seed)
    numbers = np.repeat(np.arange(people), 3)
    rows = draw.normal(size=(people, 8))[numbers] + spread * draw.normal(size=(3 * people, 8))
    everybody = np.arange(3 * people)
    protocol = Protocol("all", numbers, np.empty(0, np.int64), everybody, everybody)
    return rank_protocol(rows.astype(np.float32), protocol)


def comparison_of(value: float, half: float, people: int) -> ModelComparison:
    """A comparison whose mAP differs by so much."""
    difference = Difference(value, value - half, value + half, 0.5)
    return ModelComparison(
        {"mAP": Interval(0.5, 0.4, 0.6)}, {"mAP": Interval(0.5 + value, 0.4, 0.6)}, {"mAP": difference}, people=people
    )


def test_a_better_candidate_passes_without_reasons() -> None:
    comparison = compare_rankings(ranked(1.2), ranked(0.6))
    assert judge(comparison).passed


def test_a_worse_candidate_is_refused_and_every_reason_names_its_figures() -> None:
    comparison = compare_rankings(ranked(0.6), ranked(1.2))
    verdict = judge(comparison)
    assert not verdict.passed
    assert {r.split()[0] for r in verdict.reasons} >= {"mAP", "1-call@1"}
    now, before = (f"{side['mAP'].value:.1%}" for side in (comparison.candidate, comparison.baseline))
    assert verdict.reasons[0].startswith(f"mAP {now}, now {before}:")


@pytest.mark.parametrize(
    ("value", "half", "people", "outcome"),
    [
        (0.0, 0.0, 61, "passed"),
        (0.0, 0.0, 59, "unclear"),  # none of 59 people was harmed, and still 3 of 59 may be: 5.1 points
        (0.03, 0.01, 40, "passed"),  # better by as much as the rule of three takes away
        (-0.004, 0.001, 500, "passed"),  # surely worse, by less than half a point
        (-0.006, 0.001, 500, "refused"),
        (-0.006, 0.007, 500, "passed"),  # may be worse, by 1.3 points at most
        (-0.02, 0.04, 500, "unclear"),  # may be worse by 6 points
        (0.3, 0.1, MIN_PEOPLE, "passed"),
        (0.3, 0.1, MIN_PEOPLE - 1, "unclear"),
    ],
)
def test_harm_that_is_shown_refuses_and_harm_that_is_not_excluded_is_unclear(
    value: float, half: float, people: int, outcome: str
) -> None:
    verdict = judge(comparison_of(value, half, people))
    actual = "passed" if verdict.passed else "refused" if verdict.reasons else "unclear"
    assert actual == outcome, verdict


def test_an_unclear_verdict_states_how_many_people_are_needed() -> None:
    [sentence] = judge(comparison_of(0.0, 0.08, 50)).unclear
    assert "with 50 people a loss of 8.0" in sentence
    assert "about 128 people would do" in sentence  # (8 / 5)^2 times as many
    [sentence] = judge(comparison_of(-0.06, 0.08, 50)).unclear
    assert "would do" not in sentence


def test_a_higher_rate_of_strangers_named_counts_as_harm() -> None:
    rates = {"strangers_named": Interval(0.01, 0.0, 0.02)}
    more = replace(comparison_of(0.1, 0.01, 500), baseline=rates, candidate=rates)
    worse = {"strangers_named": Difference(0.02, 0.01, 0.03, 0.001)}
    better = {"strangers_named": Difference(-0.02, -0.03, -0.01, 0.001)}
    [reason] = judge(replace(more, difference=worse)).reasons
    assert reason.startswith("strangers named 1.0%")
    assert judge(replace(more, difference=better)).passed


def test_a_candidate_that_ranks_at_random_is_kept_out_even_alone() -> None:
    [reason] = judge(compare_rankings(None, ranked(1e6))).reasons
    assert "random order's" in reason
    assert judge(compare_rankings(None, ranked(0.6))).passed


def test_a_figure_that_is_not_a_number_never_passes() -> None:
    nan = float("nan")
    assert not judge(replace(comparison_of(0, 0, 500), difference={"mAP": Difference(nan, nan, nan, nan)})).passed


def test_a_comparison_survives_json() -> None:
    comparison = compare_rankings(ranked(0.6), ranked(0.7))
    assert ModelComparison.from_dict(comparison.to_dict()) == comparison
    content = comparison.to_dict()
    content["difference"]["mAP"]["low"] = None
    assert np.isnan(ModelComparison.from_dict(content).difference["mAP"].low)
    with pytest.raises(Corrupt):
        ModelComparison.from_dict({"people": 3})
