"""Learners that go on from a model: what they begin with, how far few labels carry them, what they refuse."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ml.embedders.base import Embedder, TrainingSet
from ml.embedders.cosim_mass import CosimMass
from ml.errors import CannotGoOn, NotFitted
from ml.registry import build, list_options, names
from tests.ml.synthetic_people import nearest_is_alike, people, two_tasks

SMALL = {
    "dim": 6,
    "steps": 60,
    "first_steps": 60,
    "k": 2,
    "pairs": 2000,
    "auxiliary_pairs": 2000,
    "local_steps": 20,
    "depth": 2,
    "folds": 2,
    "methods": ("wccn", "wpca", "ldml"),
}
SHORT = {"steps": 10, "local_steps": 10}
QUICK = {"batch": 32, "inner": 12, "averaging": 0.9}
NEVER = ("cosine", "l2", "low_rank", "scml", "subsml", "wccn", "wpca")
GO_ON = [n for n in names("embedders") if n not in NEVER]
HINGED = ("cpmtml", "mtlmca", "pcca", "stml", "utml")
JOINT = ("cosim_average", "cosim_mass", "sml")
LAYERS = ("qconv", "stiefel")
LINEAR = ("clml", "flat", "hierarchical", "ldml")
HELD = {"proximal_weight": 0.03}
"""For those whose pull is made for a fit anew, what few labels ask for."""
MANY = ("cpmtml", "mtlmca", "utml")
KNOWN, NEW = people(80, seed=1), people(60, seed=2)
FEW = people(12, 3, seed=5)


def small(name: str, **options: Any) -> Embedder:
    known = {o.name for o in list_options("embedders", name)}
    wanted = SMALL | (QUICK if name in HINGED + JOINT else {}) | options
    made: Embedder = build("embedders", name, **{k: v for k, v in wanted.items() if k in known})
    return made


@cache
def fitted(name: str) -> Embedder:
    return small(name, steps=200).fit(KNOWN)


def distances_of(
    embedder: Embedder, rows: NDArray[np.float32] = NEW.rows, task: str = "identity"
) -> NDArray[np.float64]:
    """Return the distances of faces, scaled to mean 0 and standard deviation 1."""
    z = embedder.embed(rows, task).astype(np.float64)
    d = embedder.metric.distances(z.astype(np.float32), z.astype(np.float32)).astype(np.float64)
    return (d - d.mean()) / d.std()


def alike(embedder: Embedder) -> float:
    return nearest_is_alike(embedder.embed(NEW.rows), NEW.tasks[0].people)


def test_an_embedder_that_cannot_continue_declares_it() -> None:
    for name in NEVER:
        with pytest.raises(CannotGoOn, match="anew"):
            small(name).start_from(fitted("ldml"))


@pytest.mark.parametrize("name", HINGED + JOINT + LAYERS)
@pytest.mark.parametrize("data", [KNOWN, FEW], ids=["the same", "others"])
def test_without_a_step_a_continued_fit_equals_its_start(name: str, data: TrainingSet) -> None:
    still = small(name, steps=0).start_from(fitted(name)).fit(data)
    np.testing.assert_allclose(distances_of(still), distances_of(fitted(name)), atol=2e-4)


@pytest.mark.parametrize("name", MANY)
def test_every_task_begins_where_the_model_has_it(name: str) -> None:
    data = two_tasks()
    first = small(name, steps=200).fit(data)
    still = small(name, steps=0).start_from(first).fit(data)
    turned = small(name, steps=0).start_from(first).fit(replace(data, tasks=data.tasks[::-1]))
    for task in ("identity", "mood"):
        for again in (still, turned):
            np.testing.assert_allclose(
                distances_of(again, data.rows, task), distances_of(first, data.rows, task), atol=2e-4
            )
    np.testing.assert_array_equal(still.learned["bias"], first.learned["bias"])


@pytest.mark.parametrize("name", GO_ON)
def test_with_few_labels_a_continued_fit_stays_nearer_to_the_model_and_is_no_worse_than_a_new_fit(name: str) -> None:
    before = fitted(name)
    on = small(name, **(HELD if name in LINEAR else {})).start_from(before).fit(FEW)
    anew = small(name).fit(FEW)
    moved = [np.abs(distances_of(e) - distances_of(before)).mean() for e in (on, anew)]
    assert moved[0] < 0.5 * moved[1]
    assert alike(on) >= alike(anew)
    if name != "clml":  # its local maps have no pull to the model
        assert alike(on) > alike(before) - 0.05


@pytest.mark.parametrize("name", HINGED + JOINT)
def test_the_proximal_weight_keeps_a_continued_fit_near_the_model(name: str) -> None:
    before = fitted(name)
    held, free = (small(name, proximal_weight=s, held_out=0.0).start_from(before).fit(FEW) for s in (10.0, 0.0))
    moved = [np.abs(distances_of(e) - distances_of(before)).mean() for e in (held, free)]
    assert 0 < moved[0] < 0.5 * moved[1]


@pytest.mark.parametrize("name", GO_ON)
def test_more_is_learned_from_more_labels(name: str) -> None:
    """A model that knows half of the people goes on with all of them, and is no worse."""
    [task] = KNOWN.tasks
    half = replace(task, faces=task.faces[:200], values=task.values[:200], people=task.people[:200])
    before = small(name, steps=100).fit(TrainingSet(KNOWN.rows[:200], (half,)))
    assert alike(small(name).start_from(before).fit(KNOWN)) > alike(before) - 0.03


@pytest.mark.parametrize("name", GO_ON)
def test_a_continued_fit_is_repeated_by_the_same_seed(name: str) -> None:
    on, again = (small(name, **SHORT).start_from(fitted(name)).fit(FEW).embed(NEW.rows) for _ in range(2))
    np.testing.assert_array_equal(on, again)
    if name != "auto":  # it may keep the model
        assert not np.array_equal(on, fitted(name).embed(NEW.rows))


@pytest.mark.parametrize("name", GO_ON)
def test_other_descriptors_are_refused(name: str) -> None:
    wider = replace(FEW, rows=np.concatenate([FEW.rows, FEW.rows[:, :3]], axis=1))
    with pytest.raises(CannotGoOn, match=r"30 numbers per face, these descriptors have 33"):
        small(name).start_from(fitted(name)).fit(wider)


@pytest.mark.parametrize("name", HINGED + JOINT + LAYERS)
def test_another_method_is_refused(name: str) -> None:
    for other in {"ldml", "stml", "sml", "cpmtml"} - {name}:
        with pytest.raises(CannotGoOn, match=f"{type(fitted(name)).__name__} can start from .*, not from"):
            small(name).start_from(fitted(other))
    with pytest.raises(NotFitted):
        small(name).start_from(small(name))


def test_a_map_of_directions_is_none_of_the_rows() -> None:
    with pytest.raises(CannotGoOn, match="one linear map, which Qconv is not"):
        small("ldml").start_from(fitted("qconv"))


def test_qconv_and_stiefel_continue_from_each_other() -> None:
    still = small("stiefel", steps=0).start_from(fitted("qconv")).fit(FEW)
    np.testing.assert_allclose(distances_of(still), distances_of(fitted("qconv")), atol=2e-4)


@pytest.mark.parametrize("name", HINGED + JOINT)
def test_the_shape_of_what_was_learned_is_taken_over(name: str) -> None:
    on = small(name, dim=3, inner=4, unit=False, steps=0).start_from(fitted(name)).fit(FEW)
    assert on.embed(NEW.rows).shape == fitted(name).embed(NEW.rows).shape
    np.testing.assert_allclose(distances_of(on), distances_of(fitted(name)), atol=2e-4)


@pytest.mark.parametrize("name", HINGED)
def test_a_task_that_the_model_does_not_know_is_refused(name: str) -> None:
    [task] = FEW.tasks
    with pytest.raises(CannotGoOn, match="was trained on identity, but not on mood"):
        small(name).start_from(fitted(name)).fit(replace(FEW, tasks=(replace(task, task="mood"),)))


def test_descriptors_cut_otherwise_are_refused() -> None:
    cut = replace(KNOWN, blocks=(10, 20))
    before = CosimMass.from_options(steps=20, inner=8).fit(cut)
    with pytest.raises(CannotGoOn, match="descriptor 1 has 20 numbers here"):
        CosimMass.from_options(steps=20).start_from(before).fit(replace(FEW, blocks=(20, 10)))
    with pytest.raises(CannotGoOn, match=r"other descriptors"):
        CosimMass.from_options(steps=20).start_from(before).fit(FEW)
    fewer = CosimMass.from_options(steps=20).start_from(small("cosim_mass").fit(FEW))
    with pytest.raises(CannotGoOn, match=r"other descriptors"):
        fewer.fit(replace(FEW, blocks=(10, 20)))


def test_a_continued_fit_keeps_searched_shares() -> None:
    cut = replace(KNOWN, blocks=(10, 20))
    before = build("embedders", "cosim_average", steps=30, inner=8, shares="search", parts=2).fit(cut)
    on = build("embedders", "cosim_average", steps=5).start_from(before).fit(cut)
    np.testing.assert_array_equal(on.learned["shares"], before.learned["shares"])


def test_a_second_fit_of_a_continued_embedder_starts_anew() -> None:
    on = small("stml").start_from(fitted("stml")).fit(KNOWN)
    np.testing.assert_array_equal(on.fit(KNOWN).embed(NEW.rows), small("stml").fit(KNOWN).embed(NEW.rows))
