"""The contract of embedders, tested on every one."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.embedders.base import Embedder, TrainingSet
from ml.embedders.wpca import Wpca
from ml.errors import Corrupt, FitFailed, NotFinite, NotFitted, TooFewPairs, WrongShape
from ml.registry import build, list_options, names
from tests.ml.synthetic_people import identity, people

SMALL = {
    "dim": 5,
    "steps": 30,
    "first_steps": 30,
    "k": 3,
    "pairs": 2000,
    "auxiliary_pairs": 2000,
    "local_steps": 20,
    "depth": 3,
}
SMALL |= {"bases": 40, "regions": 4, "depth": 3, "folds": 3, "methods": ("wccn", "wpca")}
EMBEDDERS = names("embedders")
LEARNERS = [n for n in EMBEDDERS if build("embedders", n).needs_fit]
KEEPS_THE_DESCRIPTORS = {"auto"}
"""Methods that change nothing, instead of failing, where too little is known."""
FROM_PAIRS = [n for n in LEARNERS if "min_pairs" in {o.name for o in list_options("embedders", n)}]


def small(name: str, **options: Any) -> Embedder:
    known = {o.name for o in list_options("embedders", name)}
    made: Embedder = build("embedders", name, **{k: v for k, v in SMALL.items() if k in known} | options)
    return made


def nearest_is_mate(embedder: Embedder, data: TrainingSet) -> float:
    """The share of faces whose nearest other face, by the embedder's own metric, is of the same person."""
    z, person = embedder.embed(data.rows), data.tasks[0].people
    distances = embedder.metric.distances(z, z)
    np.fill_diagonal(distances, np.inf)
    return float((person[distances.argmin(1)] == person).mean())


@pytest.fixture(scope="module")
def data() -> TrainingSet:
    return people()


@pytest.fixture(scope="module")
def fitted(data: TrainingSet) -> dict[str, Embedder]:
    return {name: small(name).fit(data) for name in EMBEDDERS}


@pytest.mark.parametrize("name", EMBEDDERS)
def test_a_loaded_embedder_embeds_bit_for_bit_as_the_saved_one(
    name: str, data: TrainingSet, fitted: dict[str, Embedder], tmp_path: Path
) -> None:
    fitted[name].save(tmp_path)
    loaded = type(fitted[name]).load(tmp_path)
    np.testing.assert_array_equal(loaded.embed(data.rows), fitted[name].embed(data.rows))
    assert (loaded.notes, loaded.tasks) == (fitted[name].notes, fitted[name].tasks)


@pytest.mark.parametrize("name", EMBEDDERS)
def test_a_face_has_the_same_embedding_alone_and_in_a_batch(
    name: str, data: TrainingSet, fitted: dict[str, Embedder]
) -> None:
    together = fitted[name].embed(data.rows)
    singly = np.concatenate([fitted[name].embed(row[None]) for row in data.rows])
    assert np.abs(together - singly).max() < 1e-5
    assert together.dtype == np.float32


@pytest.mark.parametrize("name", EMBEDDERS)
def test_no_faces_give_no_rows(name: str, data: TrainingSet, fitted: dict[str, Embedder]) -> None:
    width = fitted[name].embed(data.rows).shape[1]
    assert fitted[name].embed(data.rows[:0]).shape == (0, width)


@pytest.mark.parametrize("name", EMBEDDERS)
def test_read_only_rows_are_accepted(name: str, data: TrainingSet, fitted: dict[str, Embedder]) -> None:
    rows = data.rows.copy()
    rows.flags.writeable = False
    np.testing.assert_array_equal(fitted[name].embed(rows), fitted[name].embed(data.rows))


@pytest.mark.parametrize("name", EMBEDDERS)
def test_nan_is_refused(name: str, data: TrainingSet, fitted: dict[str, Embedder]) -> None:
    rows = data.rows.copy()
    rows[3, 2] = np.nan
    with pytest.raises(NotFinite):
        fitted[name].embed(rows)
    with pytest.raises(NotFinite):
        small(name).fit(replace(data, rows=rows))


@pytest.mark.parametrize("name", LEARNERS)
def test_a_wrong_width_is_refused(name: str, data: TrainingSet, fitted: dict[str, Embedder]) -> None:
    with pytest.raises(WrongShape, match="30"):
        fitted[name].embed(data.rows[:, :-1])


@pytest.mark.parametrize("name", LEARNERS)
def test_rows_that_vary_in_fewer_directions_than_an_embedding_has_numbers(name: str, data: TrainingSet) -> None:
    """They can be learned from, or are refused with what is missing."""
    axes = np.linalg.qr(np.random.default_rng(0).standard_normal((data.rows.shape[1], SMALL["dim"] - 1)))[0]
    flat = replace(data, rows=(data.rows @ axes @ axes.T).astype(np.float32))
    try:
        embedded = small(name).fit(flat).embed(flat.rows)
    except TooFewPairs:
        return
    assert np.isfinite(embedded).all()
    assert embedded.std() > 0


@pytest.mark.parametrize("name", LEARNERS)
def test_a_task_that_was_not_learned_is_refused(name: str, data: TrainingSet, fitted: dict[str, Embedder]) -> None:
    with pytest.raises(WrongShape, match="identity"):
        fitted[name].embed(data.rows, "age")


@pytest.mark.parametrize("name", LEARNERS)
def test_nothing_is_embedded_before_the_fit(name: str, data: TrainingSet) -> None:
    with pytest.raises(NotFitted):
        small(name).embed(data.rows)


@pytest.mark.parametrize("name", [n for n in LEARNERS if n not in KEEPS_THE_DESCRIPTORS])
def test_too_few_faces_are_refused_with_the_number_missing(name: str, data: TrainingSet) -> None:
    [task] = data.tasks
    few = replace(task, faces=task.faces[:3], values=task.values[:3], people=task.people[:3])
    with pytest.raises(TooFewPairs) as caught:
        small(name).fit(TrainingSet(data.rows[:3], (few,)))
    assert caught.value.missing > 0


@pytest.mark.parametrize("name", FROM_PAIRS)
def test_too_few_pairs_are_refused_with_the_number_missing(name: str, data: TrainingSet) -> None:
    [task] = data.tasks
    strangers = replace(task, values=np.arange(len(task.faces)) * 1.0)
    with pytest.raises(TooFewPairs, match="10 more to label"):
        small(name, min_pairs=10).fit(replace(data, tasks=(strangers,)))


@pytest.mark.parametrize("name", LEARNERS)
def test_the_same_seed_gives_the_same_result(name: str, data: TrainingSet, fitted: dict[str, Embedder]) -> None:
    again = small(name).fit(data)
    np.testing.assert_array_equal(again.embed(data.rows), fitted[name].embed(data.rows))


@pytest.mark.parametrize("name", FROM_PAIRS)
def test_shuffled_labels_teach_nothing_of_new_people(name: str, data: TrainingSet) -> None:
    new = people(seed=2)
    shuffled = identity(np.random.default_rng(0).permutation(data.tasks[0].people))
    untrained = [Wpca(dim=5), Wpca(dim=30), Wpca(dim=30, unit=True), build("embedders", "cosine")]
    learned = small(name).fit(replace(data, tasks=(shuffled,)))
    alike, *untrained_shares = (nearest_is_mate(e, new) for e in (learned, *(e.fit(data) for e in untrained)))
    assert alike < max(untrained_shares) + 0.08


@pytest.mark.parametrize("name", LEARNERS)
def test_a_fit_reports_its_progress(name: str, data: TrainingSet) -> None:
    reports: list[tuple[int, int]] = []
    small(name).fit(data, progress=lambda step, steps, values: reports.append((step, steps)))
    assert reports == sorted(reports)
    assert reports[-1][0] == reports[-1][1]


@pytest.mark.parametrize("name", LEARNERS)
def test_a_truncated_file_is_refused(name: str, fitted: dict[str, Embedder], tmp_path: Path) -> None:
    fitted[name].save(tmp_path)
    file = tmp_path / "embedder.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(Corrupt):
        type(fitted[name]).load(tmp_path)


@pytest.mark.parametrize("name", EMBEDDERS)
def test_a_misspelt_option_is_an_error(name: str) -> None:
    with pytest.raises(TypeError, match="dims"):
        build("embedders", name, dims=5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ldml", {"spherical": 1e308}),
        ("sml", {"dropout": 1.0}),
        ("sml", {"prior": 1e308}),
        ("stml", {"rate": 1e308}),
        ("subsml", {"pull": 0.0}),
    ],
)
def test_a_fit_whose_numbers_overflow_names_the_options(
    name: str, options: dict[str, float], data: TrainingSet
) -> None:
    [(option, value)] = options.items()
    with pytest.raises(FitFailed, match=f"{option} = {re.escape(str(value))}"):
        small(name, **options).fit(data)
