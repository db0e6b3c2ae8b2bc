"""Auto changes something only if people held out show that it helps, and says why."""

from dataclasses import replace

import numpy as np
import pytest

from ml.embedders.auto import Auto
from ml.embedders.base import Embedder, TrainingSet
from ml.embedders.cosine import Cosine
from ml.embedders.l2 import L2
from ml.embedders.ldml import Ldml
from ml.embedders.wccn import Wccn
from ml.errors import CannotGoOn, NotFitted, WrongShape
from ml.metric_learning.selection import input_map, selection
from ml.metric_learning.selection.candidates import METHODS, UNCHANGED, list_candidates
from ml.options import list_options
from ml.registry import build
from tests.ml.synthetic_people import identity, labels_alone, nearest_is_alike, people

CHEAP = {"methods": ("wccn", "wpca"), "max_seconds": 1e6}


def test_the_folds_are_limited() -> None:
    """Each is a fit: a billion of them took minutes and 5 GB before the first."""
    [folds] = [option for option in list_options(Auto) if option.name == "folds"]
    assert folds.high == 100


def auto(**options: object) -> Auto:
    return Auto.from_options(**CHEAP | options)


def only_answers(same: bool) -> TrainingSet:
    data = labels_alone(people())
    [task] = data.tasks
    kept = task.same == same
    labels = replace(
        task, pairs=task.pairs[kept], same=task.same[kept], weights=task.weights[kept], people=np.full(300, -1)
    )
    return TrainingSet(data.rows, (labels,))


def spherical_people(count: int = 200, photos: int = 3) -> TrainingSet:
    """Descriptors in which nothing can be improved: people vary alike in all directions, and so do their photos."""
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(count), photos)
    rows = rng.normal(size=(count, 40))[person] + 1.2 * rng.normal(size=(len(person), 40))
    return TrainingSet(rows.astype(np.float32), (identity(person),))


@pytest.mark.parametrize("from_labels", [False, True])
def test_it_takes_what_is_better_for_people_held_out(from_labels: bool) -> None:
    data, new = people(), people(seed=2)
    chosen = auto().fit(labels_alone(data) if from_labels else data)
    choice = chosen.notes["choice"]
    assert choice["changed"]
    assert "points of mean average precision" in choice["reason"]
    shares = [nearest_is_alike(e.embed(new.rows), new.tasks[0].people) for e in (chosen, Cosine())]
    assert shares[0] > shares[1] + 0.1
    best = max((c for c in choice["candidates"] if c["outcome"] == "better"), key=lambda c: c["low"])
    assert choice["candidate"] == best["name"]


def test_it_keeps_the_descriptors_where_nothing_is_better() -> None:
    data = spherical_people()
    chosen = auto().fit(data)
    choice = chosen.notes["choice"]
    assert (choice["candidate"], choice["changed"]) == (UNCHANGED, False)
    assert choice["reason"].startswith("kept as it is: no candidate is shown to be better")
    assert choice["people"] == 200
    np.testing.assert_array_equal(chosen.embed(data.rows), Cosine().embed(data.rows))


def test_labels_without_truth_are_not_learned_from() -> None:
    data = people()
    shuffled = identity(np.random.default_rng(0).permutation(data.tasks[0].people))
    assert not auto().fit(replace(data, tasks=(shuffled,))).notes["choice"]["changed"]


def test_answers_that_are_all_the_same_are_enough() -> None:
    assert auto().fit(only_answers(same=True)).notes["choice"]["changed"]


def test_answers_that_are_all_different_keep_the_descriptors_with_a_reason() -> None:
    choice = auto().fit(only_answers(same=False)).notes["choice"]
    assert not choice["changed"]
    assert choice["reason"] == (
        "kept as it is: 0 people have several faces known to be the same, 10 are needed to show that a change helps"
    )


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_few_faces_keep_the_descriptors(count: int) -> None:
    data = people()
    [task] = data.tasks
    few = replace(task, faces=task.faces[:count], values=task.values[:count], people=task.people[:count])
    chosen = auto().fit(TrainingSet(data.rows[:count], (few,)))
    np.testing.assert_array_equal(chosen.embed(data.rows), Cosine().embed(data.rows))


def test_a_budget_of_zero_tries_nothing() -> None:
    choice = auto(max_seconds=0.0).fit(people()).notes["choice"]
    assert not choice["changed"]
    assert {c["outcome"] for c in choice["candidates"]} == {"not started"}
    assert choice["reason"] == "kept as it is: no candidate could be measured"


def test_no_candidate_is_started_after_the_time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(1000))
    monkeypatch.setattr(selection.time, "monotonic", lambda: float(next(seconds)))
    outcomes = [c["outcome"] for c in auto(max_seconds=4.5).fit(people()).notes["choice"]["candidates"]]
    started = [outcome != "not started" for outcome in outcomes]
    assert started == sorted(started, reverse=True)
    assert 0 < sum(started) < len(started)


def test_a_candidate_that_is_clearly_worse_is_dropped_before_its_last_fold() -> None:
    candidates = auto(methods=("wccn",)).fit(spherical_people()).notes["choice"]["candidates"]
    dropped = [c for c in candidates if c["outcome"] == "dropped"]
    assert dropped
    assert all(c["gain"] < 0 and "folds" in c["why"] for c in dropped)


def test_a_choice_can_be_cancelled_within_a_fit() -> None:
    reports: list[int] = []

    def cancel(step: int, steps: int, values: dict[str, float]) -> None:
        reports.append(step)
        if len(reports) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        auto(methods=("ldml",)).fit(people(), progress=cancel)
    assert reports == sorted(reports)
    assert reports[-1] < 20, "the first fit is not over"


def test_a_candidate_that_cannot_be_fitted_is_reported() -> None:
    candidates = auto(methods=("wccn", "ldml")).fit(people(count=12, photos=2)).notes["choice"]["candidates"]
    failed = [c for c in candidates if c["outcome"] == "failed"]
    assert failed
    assert all("needed" in c["why"] for c in failed)


def test_a_refit_repeats_the_choice() -> None:
    first = auto().fit(people())
    again = first.with_options(**first.refit_options()).fit(people(70))
    again.repeat_choice(first)
    assert again.notes["choice"] == first.notes["choice"]
    assert again.notes["method"] == first.notes["method"]


def test_a_candidate_that_does_not_exist_is_refused_with_the_list_of_those_that_do() -> None:
    with pytest.raises(WrongShape, match=r"unchanged or wccn 0\.9 or"):
        auto(only="wccn 0.95").fit(people())


def test_it_embeds_as_the_chosen_method_fitted_to_the_same_data() -> None:
    data = people()
    chosen = auto(methods=("ldml",), folds=2).fit(data)
    assert chosen.notes["choice"]["candidate"] == "ldml"
    expected = Ldml(dim=30).fit(data)
    np.testing.assert_array_equal(chosen.embed(data.rows), expected.embed(data.rows))
    first, second = chosen.linear_map(), expected.linear_map()
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first[0], second[0])
    assert chosen.metric == expected.metric


def test_a_stated_size_is_kept_by_every_candidate() -> None:
    data = people()
    for candidate in list_candidates(30, 300, dim=6):
        built: Embedder = candidate.build(0, "cpu")
        small = {o: 2 for o in ("steps", "first_steps") if o in built.options()}
        assert built.with_options(**small).fit(data).embed(data.rows).shape == (300, 6), candidate.name


def test_every_method_has_a_candidate_for_narrow_and_wide_descriptors() -> None:
    for width in (128, 9860):
        assert {c.method for c in list_candidates(width, 5000)} == {"cosine", *METHODS}


@pytest.mark.parametrize("method", ["wpca", "ldml"])
def test_it_starts_from_a_model_and_corrects_it(method: str) -> None:
    data = people()
    start = build("embedders", method, dim=20).fit(data)
    kept = auto(max_seconds=0.0).start_from(start).fit(data)
    assert kept.notes["choice"]["words"] == "the model that it starts from"
    np.testing.assert_allclose(kept.embed(data.rows), start.embed(data.rows), atol=1e-4)
    corrected = auto(only="wccn 0.3").start_from(start).fit(data)
    again = Wccn(shrinkage=0.3, unit=start.unit).fit(replace(data, rows=start.embed(data.rows)))
    expected = again.embed(start.embed(data.rows))
    np.testing.assert_allclose(corrected.embed(data.rows), expected, atol=1e-3)


def test_it_starts_from_the_choice_of_another() -> None:
    data = people()
    first = auto(only="wccn 0.3").fit(data)
    kept = auto(max_seconds=0.0).start_from(first).fit(data)
    np.testing.assert_allclose(kept.embed(data.rows), first.embed(data.rows), atol=1e-5)
    kept = auto(max_seconds=0.0).start_from(L2()).fit(data)
    np.testing.assert_array_equal(kept.embed(data.rows), data.rows)


@pytest.mark.parametrize("only", ["wccn 0.3", "ldml", "clml", "unchanged"])
def test_a_wide_descriptor_is_learned_from_along_its_principal_axes(only: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = people()
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(90, 30)))[0]
    wide = replace(data, rows=(data.rows @ basis.T + 0.1).astype(np.float32))
    monkeypatch.setattr(input_map, "MAX_INPUT_AXES", 30)
    chosen = auto(only=only).fit(wide)
    if only == UNCHANGED:
        np.testing.assert_array_equal(chosen.embed(wide.rows), Cosine().embed(wide.rows))
        return
    inputs = input_map.fit_input_map(wide, 0, "cpu")
    assert inputs is not None
    inside = inputs.apply(wide.rows)
    [candidate] = [c for c in list_candidates(30, 300) if c.name == only]
    expected = candidate.build(0, "cpu").fit(replace(data, rows=inside)).embed(inside)
    np.testing.assert_allclose(chosen.embed(wide.rows), expected, atol=2e-3)


def test_whitened_fits_are_tried_first_where_the_descriptor_is_weak() -> None:
    tried: dict[bool, list[str]] = {}
    for weak in (True, False):
        data = people(noise=22 if weak else 1)
        choice = auto(methods=METHODS, max_seconds=0.0).fit(data).notes["choice"]
        assert (choice["precision"] < 0.5) == weak
        tried[weak] = [candidate["method"] for candidate in choice["candidates"]]
        assert set(tried[weak][:6]) == {"wccn", "wpca"}, "what takes no time comes first"
    assert tried[True][6:8] == ["ldml", "clml"]
    assert tried[False][6] == "low_rank"
    assert tried[False][-2:] == ["ldml", "clml"]


def test_it_does_not_start_from_what_is_not_one_linear_map() -> None:
    data = people()
    with pytest.raises(CannotGoOn, match="one linear map"):
        auto().start_from(build("embedders", "clml", dim=4, k=2, steps=2, first_steps=2).fit(data))
    with pytest.raises(NotFitted):
        auto().start_from(Ldml())
