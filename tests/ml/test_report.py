import json

import numpy as np
import pytest

from ml.distances import INNER_PRODUCT
from ml.errors import Corrupt, WrongShape
from ml.evaluation.curves import cells_to_try, distractor_curve, speed_accuracy
from ml.evaluation.protocols import Protocol, held_out_people, open_set_people
from ml.evaluation.records import EvaluationReport
from ml.evaluation.report import rank_protocol, summarise
from ml.evaluation.verification import misses_at_fpir
from ml.indexes.flat import FlatIndex
from ml.indexes.ivf import IvfIndex


@pytest.fixture(scope="module")
def people() -> np.ndarray:
    return np.repeat(np.arange(120), 4)


@pytest.fixture(scope="module")
def rows(people: np.ndarray) -> np.ndarray:
    draw = np.random.default_rng(0)
    return (draw.normal(size=(120, 8))[people] + 0.7 * draw.normal(size=(480, 8))).astype(np.float32)


@pytest.fixture(scope="module")
def protocol(people: np.ndarray) -> Protocol:
    return held_out_people(people, 0.5)


@pytest.fixture(scope="module")
def report(rows: np.ndarray, protocol: Protocol) -> EvaluationReport:
    return summarise([rank_protocol(rows, protocol)], protocol=protocol.name)


def test_a_report_contains_every_measured_figure(report: EvaluationReport) -> None:
    assert (report.protocol, report.draws, report.queries, report.gallery) == ("held-out-0.5-0", 1, 60, 180)
    assert report.relevant == 180
    assert report.mean_average_precision.low < report.mean_average_precision.value < report.mean_average_precision.high
    calls = [report.ncall[k].value for k in ("1", "2", "5", "10", "20")]
    assert calls == sorted(calls)
    assert report.cmc[9] == pytest.approx(report.ncall["10"].value)
    assert report.fnir["0.01"].value >= report.fnir["0.1"].value
    assert 0 < report.eer < 0.5
    assert report.separation is not None
    assert report.nearest_error is not None
    assert report.eer == report.separation.eer.value
    assert report.separation.auc.low < report.separation.auc.value < report.separation.auc.high
    assert report.separation.dispersion.d_prime.value > 0
    assert report.nearest_error.value == pytest.approx(1 - report.ncall["1"].value)
    assert all(low <= v <= high for low, v, high in zip(report.cmc_low, report.cmc, report.cmc_high, strict=True))
    assert (report.cmc_low[9], report.cmc_high[9]) == pytest.approx((report.ncall["10"].low, report.ncall["10"].high))
    assert report.sd is None


def test_a_report_goes_through_json_and_back(report: EvaluationReport, rows: np.ndarray, protocol: Protocol) -> None:
    assert EvaluationReport.from_dict(json.loads(json.dumps(report.to_dict(), allow_nan=False))) == report
    with pytest.raises(Corrupt, match="not a report"):
        EvaluationReport.from_dict({"protocol": "x"})


def test_a_report_of_an_older_version_is_read(report: EvaluationReport) -> None:
    added = ("cmc_low", "cmc_high", "nearest_error", "separation")
    old = {name: v for name, v in report.to_dict().items() if name not in added}
    assert EvaluationReport.from_dict(old).mean_average_precision == report.mean_average_precision
    assert EvaluationReport.from_dict(old).separation is None


def test_inner_products_are_reported_unchanged(rows: np.ndarray, protocol: Protocol) -> None:
    ranked = rank_protocol(rows, protocol, metric=INNER_PRODUCT)
    separation = summarise([ranked], protocol="p", metric=INNER_PRODUCT).separation
    assert separation is not None
    assert separation.dispersion.foes.value == pytest.approx(ranked.impostor.mean(), rel=1e-5)


def test_people_are_resampled_also_where_something_else_is_compared(rows: np.ndarray, protocol: Protocol) -> None:
    ranked = rank_protocol(rows, protocol, values=20.0 + protocol.people % 30, tolerance=3)
    assert np.array_equal(ranked.groups, protocol.people[protocol.queries])


def test_an_open_set_has_strangers_of_its_own(rows: np.ndarray, people: np.ndarray) -> None:
    open_set = open_set_people(people, 0.5, seed=3)
    ranked = rank_protocol(rows, open_set)
    assert (ranked.mated.sum(), ranked.strangers.sum(), ranked.gallery) == (30, 30, 90)
    assert not np.isin(people[open_set.queries[~ranked.mated]], people[open_set.gallery]).any()
    assert not np.isin(people[open_set.training], people[open_set.queries]).any()
    report = summarise([ranked], protocol=open_set.name)
    missed = misses_at_fpir(ranked.mate, ranked.stranger[~ranked.mated], 0.1)
    assert report.fnir["0.1"].value == pytest.approx(np.nanmean(missed))
    with pytest.raises(WrongShape, match="four or more"):
        open_set_people(people[:16], 0.5)


def test_chance_is_what_random_embeddings_reach(people: np.ndarray, protocol: Protocol) -> None:
    draw = np.random.default_rng(1)
    random = [rank_protocol(draw.normal(size=(480, 3)).astype(np.float32), protocol) for _ in range(20)]
    report = summarise(random, protocol="p")
    assert report.chance_at_10 == pytest.approx(1 - (170 / 180) * (169 / 179) * (168 / 178), abs=1e-9)
    assert report.ncall["10"].value == pytest.approx(report.chance_at_10, abs=0.03)


def test_draws_are_pooled_and_their_spread_is_reported(rows: np.ndarray, people: np.ndarray) -> None:
    ranked = [rank_protocol(rows, held_out_people(people, 0.5, seed=s)) for s in range(3)]
    alone = [summarise([r], protocol="p").mean_average_precision.value for r in ranked]
    together = summarise(ranked, protocol="p")
    assert together.draws == 3
    assert together.mean_average_precision.value == pytest.approx(np.mean(alone))
    assert together.sd is not None
    assert together.sd["mean_average_precision"] == pytest.approx(np.std(alone, ddof=1))


def test_a_task_with_a_tolerance_is_measured_by_its_values(rows: np.ndarray, people: np.ndarray) -> None:
    protocol = held_out_people(people, 0.5)
    ages = 20.0 + people % 30
    report = summarise([rank_protocol(rows, protocol, values=ages, tolerance=3)], protocol="p", task="age")
    assert report.task == "age"
    assert report.relevant > 180


def test_embeddings_of_other_photos_are_refused(rows: np.ndarray, protocol: Protocol) -> None:
    with pytest.raises(WrongShape, match="480"):
        rank_protocol(rows[:-1], protocol)


def test_a_report_needs_something_to_find(rows: np.ndarray) -> None:
    alone = Protocol("p", np.arange(480), np.arange(400), np.arange(400, 440), np.arange(440, 480))
    with pytest.raises(WrongShape, match="relevant face"):
        summarise([rank_protocol(rows, alone)], protocol="p")


def test_distractors_only_make_it_harder(rows: np.ndarray, protocol: Protocol) -> None:
    extra = np.random.default_rng(2).normal(size=(400, 8)).astype(np.float32)
    curve = distractor_curve(rows, protocol, extra)
    assert [p.distractors for p in curve] == [0, 100, 200, 300, 400]
    values = [p.mean_average_precision.value for p in curve]
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0]


def test_probing_more_cells_finds_more_and_all_cells_find_all(rows: np.ndarray, people: np.ndarray) -> None:
    draw = np.random.default_rng(3)
    many = draw.normal(size=(4000, 8)).astype(np.float32)
    index = IvfIndex(8)
    index.add(np.arange(4000), many)
    points = speed_accuracy(index, draw.normal(size=(50, 8)).astype(np.float32), timed=5)
    assert [p.m for p in points] == list(cells_to_try(index.cells))
    recalls = [p.recall.value for p in points]
    assert recalls == sorted(recalls)
    assert recalls[-1] == 1
    assert all(np.diff([p.fraction.value for p in points]) >= 0)
    assert all(p.milliseconds > 0 for p in points)


def test_the_curve_reports_one_call_if_values_are_known(rows: np.ndarray, people: np.ndarray) -> None:
    index = FlatIndex(8)
    gallery = np.arange(480)[np.arange(480) % 4 > 0]
    index.add(gallery, rows[gallery])
    [point] = speed_accuracy(
        index,
        rows[::4],
        values=people[::4].astype(float),
        value_of={int(i): float(people[i]) for i in gallery},
        timed=3,
    )
    assert point.one_call is not None
    assert point.one_call.value > 0.5
