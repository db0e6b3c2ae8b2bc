from dataclasses import replace

import numpy as np
import pytest

from ml.evaluation.gate import judge
from ml.evaluation.intervals import Interval
from ml.evaluation.protocols import held_out_people
from ml.evaluation.records import Report
from ml.evaluation.report import rank_protocol, summarise


def measured(spread: float) -> Report:
    draw = np.random.default_rng(0)
    people = np.repeat(np.arange(60), 4)
    protocol = held_out_people(people, 0.5)
    rows = draw.normal(size=(60, 8))[people] + spread * draw.normal(size=(240, 8))
    return summarise([rank_protocol(rows.astype(np.float32), protocol)], protocol=protocol.name)


@pytest.fixture(scope="module")
def good() -> Report:
    return measured(0.6)


@pytest.fixture(scope="module")
def poor() -> Report:
    return measured(1.5)


def test_a_better_candidate_passes_without_a_word(good: Report, poor: Report) -> None:
    assert judge(good, poor) == judge(good, None)
    assert judge(good, poor).passed
    assert judge(good, poor).reasons == ()


def test_a_worse_candidate_is_kept_out_and_every_reason_names_its_figures(good: Report, poor: Report) -> None:
    verdict = judge(poor, good)
    assert not verdict.passed
    assert [r.split()[0] for r in verdict.reasons] == ["mAP", "1-call@1", "1-call@10"]
    was, now = (f"{r.mean_average_precision.value:.1%}" for r in (good, poor))
    assert verdict.reasons[0].startswith(f"mAP {now}, now {was}:")


def test_the_slack_decides_what_is_worse(good: Report) -> None:
    value = good.mean_average_precision.value - 0.01
    less = replace(good, mean_average_precision=Interval(value, value, value))
    assert judge(less, good, slack=0.011).passed
    assert judge(less, good, slack=0.009).reasons == (
        f"mAP {value:.1%}, now {value + 0.01:.1%}: 1.0% lost, 0.9% allowed",
    )


def test_a_candidate_that_ranks_at_random_is_kept_out_even_alone() -> None:
    verdict = judge(measured(1e6), None)
    assert not verdict.passed
    assert "random order's" in verdict.reasons[0]


def test_a_gallery_in_which_ten_faces_are_most_of_all_is_not_judged_by_the_first_ten(good: Report) -> None:
    few = replace(good, chance_at_10=0.9)
    none = Interval(0.0, 0.0, 0.0)
    assert judge(replace(few, ncall=few.ncall | {"10": none}), few).passed
    assert not judge(replace(good, ncall=good.ncall | {"10": none}), good).passed
    [reason] = judge(replace(few, ncall=few.ncall | {"1": none}), few).reasons
    assert reason.startswith("1-call@1 0.0%")


def test_reports_of_two_protocols_are_not_compared(good: Report) -> None:
    verdict = judge(good, replace(good, protocol="queries-0"))
    assert not verdict.passed
    assert "measure both on one" in verdict.reasons[0]


def test_a_figure_that_is_not_a_number_never_passes(good: Report) -> None:
    nan = Interval(float("nan"), float("nan"), float("nan"))
    assert not judge(replace(good, mean_average_precision=nan), good).passed
