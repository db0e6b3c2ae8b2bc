"""The rule by which a candidate may take a baseline's place."""

from dataclasses import replace

import numpy as np
import pytest

from ml.errors import Corrupt
from ml.evaluation.comparisons.gate_rule import MIN_PEOPLE, GateVerdict, judge
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


def judge_differences(people: int = 500, **differences: tuple[float, float, float]) -> GateVerdict:
    """Judge a comparison with these differences (value, low, high), all metrics of the candidate being 50 %."""
    half = dict.fromkeys(differences, Interval(0.5, 0.4, 0.6))
    judged = {name: Difference(*values, 0.01) for name, values in differences.items()}
    return judge(ModelComparison(half, half, judged, people=people))


@pytest.mark.parametrize(
    ("metric", "value", "low", "high", "is_shown"),
    [
        ("mAP", -0.02, -0.03, -0.001, True),
        ("mAP", -0.02, -0.03, 0.0, False),  # the interval reaches 0
        ("mAP", -0.005, -0.006, -0.004, False),  # the tolerance itself
        ("strangers_named", 0.004, 0.001, 0.007, False),
        ("strangers_named", 0.005, 0.001, 0.007, False),
        ("strangers_named", 0.006, 0.001, 0.007, True),
        ("strangers_named", 0.006, 0.0, 0.012, False),
        ("strangers_named", 0.006, -0.001, 0.013, False),
        ("1-call@10", -0.5, -0.6, -0.4, False),  # it is measured, and not judged
    ],
)
def test_harm_is_shown_by_an_interval_beyond_zero_and_a_value_beyond_the_tolerance(
    metric: str, value: float, low: float, high: float, is_shown: bool
) -> None:
    assert bool(judge_differences(**{metric: (value, low, high)}).reasons) == is_shown


def test_each_judged_metric_is_named_for_people() -> None:
    worse = dict.fromkeys(("mAP", "1-call@1", "named_rightly", "labelled_pairs"), (-0.02, -0.03, -0.01))
    verdict = judge_differences(**worse, strangers_named=(0.02, 0.01, 0.03))
    names = ("mAP", "1-call@1", "queries named rightly", "strangers named", "labelled pairs told right")
    signs = {name: ("1.0 to 3.0" if name == "strangers named" else "-3.0 to -1.0") for name in names}
    assert verdict.reasons == tuple(
        f"{name} 50.0%, now 50.0%: 2.0 points worse (95 % interval of the difference {signs[name]}, p 0.01)"
        for name in names
    )


def test_what_is_unclear_is_not_said_where_harm_is_shown() -> None:
    unclear = {"mAP": (0.0, -0.2, 0.2)}
    assert judge_differences(**unclear).unclear
    verdict = judge_differences(**unclear, strangers_named=(0.02, 0.01, 0.03))
    assert (len(verdict.reasons), verdict.unclear, verdict.passed) == (1, (), False)


@pytest.mark.parametrize(
    ("metric", "allowed", "name"),
    [
        ("mAP", 5.0, "mAP"),
        ("1-call@1", 5.0, "1-call@1"),
        ("named_rightly", 10.0, "queries named rightly"),
        ("labelled_pairs", 5.0, "labelled pairs told right"),
    ],
)
def test_each_metric_may_lose_so_much_and_the_sentence_says_how_many_people_are_needed(
    metric: str, allowed: float, name: str
) -> None:
    share = allowed / 100
    assert judge_differences(**{metric: (0.0, -share, share)}).passed
    [sentence] = judge_differences(100, **{metric: (-share / 5, -share * 6 / 5, share)}).unclear
    assert sentence == (
        f"{name}: the difference is {-allowed / 5:.1f} points, and with 100 people a loss of {allowed * 6 / 5:.1f} "
        f"cannot be excluded; {allowed:.1f} is the most; about 157 people would do, if they go on like this"
    )  # (5 / 4)^2 times as many


def test_strangers_named_are_judged_by_shown_harm_alone() -> None:
    assert judge_differences(strangers_named=(0.0, -0.5, 0.5)).passed


@pytest.mark.parametrize(
    ("value", "low", "people", "needed"),
    [
        (0.0, 0.0, 20, "; about 60 people would do"),  # 3 / 5 %, by the rule of three
        (-0.025, -0.025, 59, "; about 120 people would do"),  # 3 / 2.5 %
        (0.0, -0.0501, 500, "; about 503 people would do"),
        (0.0, -0.05001, 500, "; about 501 people would do"),  # one more at least
        (-0.05, -0.2, 500, ""),  # no number of people like these would do
        (-0.06, -0.2, 500, ""),
    ],
)
def test_the_people_that_are_needed_follow_from_the_width_or_from_the_rule_of_three(
    value: float, low: float, people: int, needed: str
) -> None:
    [sentence] = judge_differences(people, mAP=(value, low, 0.5)).unclear
    assert sentence.partition("5.0 is the most")[2] == needed + ", if they go on like this" * bool(needed)


def test_too_few_people_are_said_and_equal_models_need_none() -> None:
    [sentence] = judge_differences(9, mAP=(-0.5, -0.6, -0.4)).unclear
    assert sentence == "9 people to measure on, 10 needed"
    assert judge(replace(comparison_of(-0.5, 0.1, 9), identical=True)).passed


@pytest.mark.parametrize(("low", "passes"), [(0.2, False), (0.201, True), (0.1, False)])
def test_a_candidate_must_rank_better_than_chance(low: float, passes: bool) -> None:
    alone = ModelComparison({}, {"1-call@1": Interval(0.3, low, 0.4)}, {}, people=50, chance=0.2)
    reason = "1-call@1 is 30.0%, not shown to be above a random order's 20.0%"
    assert judge(alone).reasons == (() if passes else (reason,))
    assert judge(replace(alone, candidate={})).passed, "without a ranking there is nothing to be better than"


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        ("named_rightly", (0.1, 0.05, float("nan"))),
        ("named_rightly", (float("nan"), 0.05, 0.2)),
        ("named_rightly", (float("inf"), 0.05, 0.2)),
        ("strangers_named", (-0.1, float("-inf"), 0.0)),
    ],
)
def test_a_figure_without_a_number_is_named(metric: str, values: tuple[float, float, float]) -> None:
    name = {"named_rightly": "queries named rightly", "strangers_named": "strangers named"}[metric]
    assert judge_differences(**{metric: values}).reasons == (f"{name}: not a number",)


def test_a_comparison_survives_json() -> None:
    comparison = compare_rankings(ranked(0.6), ranked(0.7))
    assert ModelComparison.from_dict(comparison.to_dict()) == comparison
    content = comparison.to_dict()
    content["difference"]["mAP"]["low"] = None
    assert np.isnan(ModelComparison.from_dict(content).difference["mAP"].low)
    with pytest.raises(Corrupt):
        ModelComparison.from_dict({"people": 3})
