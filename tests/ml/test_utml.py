from dataclasses import replace

import numpy as np
import torch

from ml.embedders.base import TrainingSet
from ml.embedders.stml import Stml
from ml.embedders.utml import Utml
from ml.metric_learning.hinge.projections import Projections, Rates
from tests.ml.synthetic_people import two_tasks
from tests.ml.test_cpmtml import RATES, close, learn, made, mean_distance_ratio, pairs_of
from tests.rounding import rounding

QUICK = {"dim": 6, "steps": 200, "batch": 32, "pairs": 2000, "averaging": 0.9, "held_out": 0}
DATA = two_tasks()


def test_utml_equals_cp_mtml_without_task_projections() -> None:
    rows, at = made(tasks=3)
    at.own = [torch.zeros_like(p) for p in at.own]
    union = Projections(at.common.clone(), [p[:0] for p in at.own], list(at.bias))
    learn(at, rows, pairs_of(3, 300))
    learn(union, rows, pairs_of(3, 300))
    assert close(union.common, at.common)
    assert np.allclose(union.bias, at.bias, rtol=1e-12)
    assert union.stack(1).shape == (5, 12)


def test_a_pair_moves_the_projection_of_all_and_its_own_tasks_bias() -> None:
    rows, at = made(tasks=2)
    union = Projections(at.common, [p[:0] for p in at.own], [1.0, 1.0])
    before = union.clone()
    learn(union, rows, [(1, 0, 1, 1)])
    assert not torch.equal(union.common, before.common)
    assert union.bias[0] == 1.0
    assert union.bias[1] == 1.0 + RATES.bias


def test_with_one_task_utml_equals_stml() -> None:
    """Both hold the same projection, but in another order in memory, and are multiplied by other kernels.

    Few steps: an error that moves one pair across the hinge moves the projection by a whole step.
    """
    few = QUICK | {"steps": 50}
    alone = TrainingSet(DATA.rows, DATA.tasks[:1])
    union, single = Utml.from_options(**few).fit(alone), Stml.from_options(**few).fit(alone)
    near = rounding(DATA.rows.shape[1] + few["batch"], steps=few["steps"])
    z, same = union.embed(DATA.rows), single.embed(DATA.rows)
    np.testing.assert_allclose(z, same, atol=near * np.abs(same).max())
    np.testing.assert_allclose(union.learned["bias"], single.learned["bias"], rtol=near)


def test_all_tasks_share_one_embedding_and_each_has_its_own_bias() -> None:
    fitted = Utml.from_options(**QUICK, auxiliary_pairs=2000).fit(DATA)
    z = fitted.embed(DATA.rows)
    assert z.shape == (len(DATA.rows), 6)
    np.testing.assert_array_equal(z, fitted.embed(DATA.rows, "mood"))
    assert fitted.learned["bias"].shape == (2,)
    assert fitted.learned["bias"][0] != fitted.learned["bias"][1]
    for task in DATA.tasks:
        assert mean_distance_ratio(z, task.values) > mean_distance_ratio(DATA.rows, task.values) + 0.1


def test_pairs_of_the_other_task_improve_its_distances() -> None:
    longer = replace(Utml.from_options(**QUICK), auxiliary_pairs=2000)
    both = longer.fit(DATA).embed(DATA.rows)
    alone = Utml.from_options(**QUICK | {"steps": 100}).fit(TrainingSet(DATA.rows, DATA.tasks[:1])).embed(DATA.rows)
    mood = DATA.tasks[1].values
    assert mean_distance_ratio(both, mood) > mean_distance_ratio(alone, mood)


def test_a_common_rate_of_zero_keeps_the_common_projection() -> None:
    rows, at = made(tasks=2)
    union = Projections(at.common, [p[:0] for p in at.own], [1.0, 1.0])
    before = union.clone()
    learn(union, rows, pairs_of(2, 20), Rates(1.0, 0.0, 0.0))
    assert torch.equal(union.common, before.common)
