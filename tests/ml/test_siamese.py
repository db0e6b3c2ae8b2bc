"""qConv and Stiefel as embedders of fixed descriptors."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ml.embedders.base import TrainingSet
from ml.embedders.cosine import Cosine
from ml.embedders.wpca import Wpca
from ml.errors import NotFitted, TooFewPairs, WrongShape
from ml.metric_learning.siamese.embedder import SiameseEmbedder
from ml.registry import build
from tests.ml.synthetic_people import contradicted, identity, labels_alone, nearest_is_alike, people, relative

BOTH = pytest.mark.parametrize("name", ["qconv", "stiefel"])


def small(name: str, **options: Any) -> SiameseEmbedder:
    made: SiameseEmbedder = build("embedders", name, **{"dim": 6, "steps": 60} | options)
    return made


@BOTH
@pytest.mark.parametrize("start", ["random", "pca", "best"])
def test_the_fit_distinguishes_new_people_better_than_its_start(name: str, start: str) -> None:
    known, new = people(80, seed=1), people(60, seed=2)
    whole = {"start": start, "held_out": 0.0, "proximal_weight": 0.0}
    begin, learned = (small(name, **whole, steps=s).fit(known).embed(new.rows) for s in (0, 150))
    alike = [nearest_is_alike(z, new.tasks[0].people) for z in (begin, learned)]
    assert alike[1] > alike[0] + (-0.04 if start == "best" else 0.1)
    assert alike[1] > nearest_is_alike(Wpca(dim=6).fit(known).embed(new.rows), new.tasks[0].people) + 0.1


@pytest.mark.parametrize("gradient", ["metric", "inverse"])
def test_the_gradients_of_the_quotients_own_metrics_teach_too(gradient: str) -> None:
    known, new = people(80, seed=1), people(60, seed=2)
    whole = {"start": "pca", "held_out": 0.0, "proximal_weight": 0.0, "gradient": gradient}
    begin, learned = (small("qconv", **whole, steps=s).fit(known).embed(new.rows) for s in (0, 150))
    untrained = Wpca(dim=6).fit(known).embed(new.rows)
    alike = [nearest_is_alike(z, new.tasks[0].people) for z in (begin, learned, untrained)]
    assert alike[1] > max(alike[0], alike[2]) + 0.1


@BOTH
def test_shuffled_labels_teach_nothing(name: str) -> None:
    known, new = people(80, seed=1), people(60, seed=2)
    shuffled = np.random.default_rng(0).permutation(known.tasks[0].people)
    learned = small(name, held_out=0.0).fit(TrainingSet(known.rows, (identity(shuffled),)))
    untrained = Wpca(dim=6).fit(known)
    alike = [nearest_is_alike(e.embed(new.rows), new.tasks[0].people) for e in (learned, untrained)]
    assert alike[0] < alike[1] + 0.1


@BOTH
def test_descriptors_of_another_scale_are_learned_as_well(name: str) -> None:
    data = people(seed=4)
    small_ones, large = (small(name).fit(replace(data, rows=data.rows * by)).embed(data.rows) for by in (1.0, 64.0))
    np.testing.assert_allclose(small_ones, large, atol=2e-3)


@BOTH
def test_a_descriptor_that_is_already_good_does_not_get_worse(name: str) -> None:
    """People lie apart in every direction already, and the few that are labelled teach nothing of others."""
    draw = np.random.default_rng(0)
    person = np.repeat(np.arange(90), 4)
    rows = (draw.normal(size=(90, 24))[person] + 0.75 * draw.normal(size=(360, 24))).astype(np.float32)
    known, new = rows[:120], rows[120:]
    learned = small(name, dim=24, held_out=0.3).fit(TrainingSet(known, (identity(person[:120]),)))
    ours, own = (nearest_is_alike(e.embed(new), person[120:]) for e in (learned, Cosine()))
    assert own < 1
    assert ours >= own - 0.01


@BOTH
def test_a_strong_pull_keeps_the_distances_of_the_start(name: str) -> None:
    data = people(seed=13)
    whole = {"start": "pca", "held_out": 0.0, "length": "kept"}
    begin, held, free = (
        small(name, **whole, **options).fit(data).embed(data.rows)
        for options in ({"steps": 0}, {"proximal_weight": 100.0}, {"proximal_weight": 0.0})
    )

    def apart(z: np.ndarray) -> float:
        d2 = [((e[:, None] - e[None]) ** 2).sum(2) for e in (z, begin)]
        return float(np.abs(d2[0] - d2[1]).mean())

    assert apart(held) < 0.1 * apart(free)


@BOTH
def test_held_out_people_choose_the_steps_and_the_refit_uses_everybody(name: str) -> None:
    data = people(seed=10)
    judged = small(name, held_out=0.3).fit(data)
    assert 0 <= judged.notes["steps"] <= 60
    assert 0 < judged.notes["held_out"] <= 1
    assert judged.notes["start"] in ("lda", "pca")
    length = "unit" if judged.notes["unit"] else "kept"
    whole = {"held_out": 0.0, "start": judged.notes["start"], "length": length, "steps": judged.notes["steps"]}
    again = small(name, **whole).fit(data)
    np.testing.assert_array_equal(again.embed(data.rows), judged.embed(data.rows))


@BOTH
def test_labels_of_held_out_people_do_not_reach_the_fit(name: str) -> None:
    data = people(seed=11)
    [task] = data.tasks
    made = small(name, held_out=0.3)
    held = np.setdiff1d(task.faces, made._prepare(data).task.faces)
    assert len(held) > 20
    poisoned = task.values.copy()
    poisoned[held] = np.random.default_rng(0).permutation(poisoned[held])

    def learned(values: np.ndarray) -> torch.Tensor:
        fit_data = made._prepare(TrainingSet(data.rows, (replace(task, values=values),)))
        return made._learn(replace(fit_data, held_out=None), "lda", 20, lambda *_: None).matrix

    assert torch.equal(learned(task.values), learned(poisoned))
    assert not torch.equal(learned(task.values), learned(np.random.default_rng(0).permutation(task.values)))


@BOTH
@pytest.mark.parametrize("same", [True, False])
def test_thirty_explicit_labels_override_what_the_values_say(name: str, same: bool) -> None:
    data = people(seed=5)
    otherwise, pairs = contradicted(data, same)
    whole = {"held_out": 0.0, "steps": 100, "proximal_weight": 0.0, "start": "lda", "corrections": 0.5}
    before, after = (relative(small(name, **whole).fit(d).embed(data.rows), pairs) for d in (data, otherwise))
    assert after < before - 0.1 if same else after > before + 0.1


@BOTH
def test_explicit_labels_alone_are_enough(name: str) -> None:
    known, new = people(120, seed=7), people(60, seed=8)
    data, whole = labels_alone(known), {"start": "pca", "held_out": 0.0, "proximal_weight": 0.0, "rate": 0.3}
    begin, learned = (small(name, **whole, steps=steps).fit(data) for steps in (0, 150))
    best, untrained = small(name).fit(data), Wpca(dim=6).fit(known)
    alike = [nearest_is_alike(e.embed(new.rows), new.tasks[0].people) for e in (begin, learned, best, untrained)]
    assert alike[1] > alike[0] + 0.04
    assert alike[2] > alike[3] + 0.1


@BOTH
def test_learning_goes_on_from_what_was_learned(name: str) -> None:
    data = people(seed=12)
    made = small(name).fit(data)
    before = made.embed(data.rows)
    made.start, made.fitting = "learned", replace(made.fitting, steps=0)
    after = made.fit(data).embed(data.rows)
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-4)
    with pytest.raises(NotFitted):
        small(name, start="learned").fit(data)


@BOTH
def test_what_cannot_be_learned_from_is_refused(name: str) -> None:
    data = people(1, 20)
    with pytest.raises(TooFewPairs, match="not the same"):
        small(name, dim=2).fit(data)
    with pytest.raises(WrongShape, match="31 or more"):
        small(name, dim=31).fit(people())
    with pytest.raises(TooFewPairs, match="tasks"):
        small(name).fit(TrainingSet(data.rows, ()))
    flat = people()
    flat.rows[:, 4:] = 0
    with pytest.raises(TooFewPairs, match="faces that differ"):
        small(name).fit(flat)


@BOTH
def test_the_maps_are_what_embed_applied(name: str) -> None:
    data = people(seed=3)
    for length in ("unit", "kept"):
        made = small(name, length=length).fit(data)
        opened = made.maps(data.rows)
        assert opened is not None
        z = opened.shares * (opened.rows @ opened.projections[0].T - opened.offsets[0])
        np.testing.assert_allclose(z, made.embed(data.rows), atol=1e-5)


def test_the_cayley_retraction_learns_too() -> None:
    known, new = people(80, seed=1), people(60, seed=2)
    untrained = nearest_is_alike(Wpca(dim=6).fit(known).embed(new.rows), new.tasks[0].people)
    whole = {"start": "pca", "held_out": 0.0, "proximal_weight": 0.0, "retraction": "cayley"}
    learned = small("stiefel", **whole, steps=150).fit(known)
    assert nearest_is_alike(learned.embed(new.rows), new.tasks[0].people) > untrained + 0.1


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@BOTH
def test_the_gpu_learns_what_the_cpu_learns(name: str) -> None:
    data = people(seed=15)
    there, here = (small(name, device=d).fit(data).embed(data.rows) for d in ("cuda", "cpu"))
    assert abs(nearest_is_alike(there, data.tasks[0].people) - nearest_is_alike(here, data.tasks[0].people)) < 0.05
