"""Several descriptors in a row: those who seek axes weigh them so that they vary alike."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ml.embedders.base import TrainingSet
from ml.metric_learning.principal_axes import compute_block_weights
from ml.types import Rows
from tests.ml.synthetic_people import nearest_is_alike, people
from tests.ml.test_embedders import small

WEIGH = ["wpca", "ldml", "clml", "flat", "hierarchical", "scml"]
GO_ON = ["ldml", "clml", "flat", "hierarchical"]
BLOCKS = (10, 20)
LOUD = np.repeat(np.array([256, 1], np.float32), BLOCKS)


@pytest.fixture(scope="module")
def data() -> TrainingSet:
    """The first descriptor holds what tells; as it is, the second is louder."""
    return replace(people(80), blocks=BLOCKS)


def louder(data: TrainingSet) -> TrainingSet:
    return replace(data, rows=data.rows * LOUD)


def cosine_difference(a: Rows, b: Rows) -> float:
    """Return the mean difference between the cosines of two embeddings."""
    one, other = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (a, b))
    return float(np.abs(one @ one.T - other @ other.T).mean())


def test_descriptors_vary_alike_and_in_all_as_much_as_before() -> None:
    rows = torch.randn(50, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = (rows - rows.mean(0)) * torch.tensor([9.0, 9.0, 1, 1, 1, 0, 0])
    weights = compute_block_weights(rows, (2, 3, 2))
    assert weights is not None
    spread = (rows * weights).square().sum(0)
    first, second, still = spread[:2].sum(), spread[2:5].sum(), spread[5:].sum()
    assert float(first) == pytest.approx(float(second)) == pytest.approx(float(rows.square().sum()) / 2)
    assert float(still) == 0
    assert weights[-1] == 1
    assert compute_block_weights(rows, (7,)) is None


@pytest.mark.parametrize("name", WEIGH)
def test_the_units_of_a_descriptor_do_not_change_the_embedding(name: str, data: TrainingSet) -> None:
    options = {"unit": True} | ({} if name == "wpca" else {"steps": 3})
    one, other = (small(name, **options).fit(d).embed(d.rows) for d in (data, louder(data)))
    assert cosine_difference(one, other) < 0.01


def test_without_weights_the_descriptor_of_largest_variance_dominates(data: TrainingSet) -> None:
    """The weights are needed: without them, noise in large units hides the differences between people."""
    known = people(80, informative=10)
    quiet: Rows = np.where(np.arange(32) < 10, 1 / 256, 1).astype(np.float32)
    noisy = replace(known, rows=known.rows * quiet, blocks=(10, 22))
    fits = [small("ldml", axes=8, dim=8).fit(d).embed(d.rows) for d in (noisy, replace(noisy, blocks=()))]
    weighed, plain = (nearest_is_alike(z, known.tasks[0].people) for z in fits)
    assert weighed > plain + 0.2


@pytest.mark.parametrize("name", WEIGH)
def test_what_does_not_vary_changes_nothing(name: str, data: TrainingSet) -> None:
    still = replace(data, rows=np.pad(data.rows, ((0, 0), (0, 4)), constant_values=7.0), blocks=(*BLOCKS, 4))
    options = {} if name == "wpca" else {"steps": 3}
    with_it, without = (small(name, **options).fit(d).embed(d.rows) for d in (still, data))
    assert cosine_difference(with_it, without) < 0.01


@pytest.mark.parametrize("name", WEIGH)
def test_what_was_saved_embeds_the_same(name: str, data: TrainingSet, tmp_path: Path) -> None:
    fitted = small(name).fit(louder(data))
    fitted.save(tmp_path)
    rows = louder(data).rows
    np.testing.assert_array_equal(type(fitted).load(tmp_path).embed(rows), fitted.embed(rows))


@pytest.mark.parametrize("after", [louder, lambda data: data], ids=["in the same units", "with other weights"])
@pytest.mark.parametrize("name", GO_ON)
def test_a_fit_goes_on_from_the_map_that_was_learned(name: str, after: object, data: TrainingSet) -> None:
    """Before its first step the fit equals that map, whatever weights the new faces would give."""
    before = small("ldml", steps=20).fit(louder(data))
    some = after(data) if callable(after) else data
    fewer = {"steps": 0} | ({} if name == "ldml" else {"first_steps": 0, "local_steps": 0, "k": 1, "depth": 0})
    known = {key: value for key, value in fewer.items() if key in small(name).options()}
    on = small(name, **known).start_from(before).fit(some)
    rows = louder(data).rows
    assert cosine_difference(on.embed(rows), before.embed(rows)) < 1e-3
