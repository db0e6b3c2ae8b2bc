"""The parts of a distance: they sum to it, and each is what it is said to be."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ml.aligners.similarity import Similarity
from ml.descriptors.lbp import UNIFORM_BINS, Lbp
from ml.embedders.base import Embedder, TaskData, TrainingSet
from ml.embedders.clml import Clml
from ml.embedders.cosine import Cosine
from ml.embedders.cpmtml import Cpmtml
from ml.embedders.flat import FlatClusters
from ml.embedders.hierarchical import HierarchicalClusters
from ml.embedders.l2 import L2
from ml.embedders.ldml import Ldml
from ml.embedders.mtlmca import Mtlmca
from ml.embedders.pcca import Pcca
from ml.embedders.scml import Scml
from ml.embedders.stml import Stml
from ml.embedders.utml import Utml
from ml.embedders.wpca import Wpca
from ml.errors import NotLinear, WrongShape
from ml.explanation import compute_contributions, explain_distances
from ml.model import Model, Recipe
from ml.synthetic_faces import person, photograph
from ml.types import Rows, Spec
from tests.ml.synthetic_people import people
from tests.ml.tiny_onnx import tiny_onnx

DATA = people()
TWO = TrainingSet(
    DATA.rows, (DATA.tasks[0], TaskData("age", *(getattr(DATA.tasks[0], n) for n in ("faces", "values", "people"))))
)
QUICK = {"steps": 20, "seed": 1}
EMBEDDERS: dict[str, tuple[Callable[[], Embedder], str]] = {
    "l2": (L2, "identity"),
    "cosine": (Cosine, "identity"),
    "wpca": (lambda: Wpca(dim=6).fit(DATA), "identity"),
    "wpca, unit": (lambda: Wpca(dim=6, unit=True).fit(DATA), "identity"),
    "ldml": (lambda: Ldml.from_options(dim=6, unit=False, **QUICK).fit(DATA), "identity"),
    "ldml, unit": (lambda: Ldml.from_options(dim=6, **QUICK).fit(DATA), "identity"),
    "clml": (lambda: Clml.from_options(dim=6, k=3, first_steps=20, soften=4, **QUICK).fit(DATA), "identity"),
    "flat": (lambda: FlatClusters.from_options(dim=6, k=3, local_steps=20, **QUICK).fit(DATA), "identity"),
    "flat, not unit": (
        lambda: FlatClusters.from_options(dim=6, k=3, local_steps=20, unit=False, **QUICK).fit(DATA),
        "identity",
    ),
    "hierarchical, walled": (
        lambda: HierarchicalClusters.from_options(dim=6, depth=3, local_steps=20, wall=4, **QUICK).fit(DATA),
        "identity",
    ),
    "stml": (lambda: Stml.from_options(dim=6, **QUICK).fit(DATA), "identity"),
    "cp-mtml": (lambda: Cpmtml.from_options(dim=6, **QUICK).fit(TWO), "age"),
    "scml": (lambda: Scml(dim=6, bases=40, regions=4, batch=100, unit=False, **QUICK).fit(DATA), "identity"),
    "scml, local": (
        lambda: Scml(dim=6, bases=40, regions=4, batch=100, k=3, local_steps=20, **QUICK).fit(DATA),
        "identity",
    ),
    "utml": (lambda: Utml.from_options(dim=6, **QUICK).fit(TWO), "age"),
    "mtlmca": (lambda: Mtlmca.from_options(dim=6, **QUICK).fit(TWO), "age"),
    "pcca": (lambda: Pcca.from_options(dim=6, **QUICK).fit(DATA), "identity"),
}
ONE_MAP = ("l2", "cosine", "wpca", "ldml", "stml", "cp-mtml", "utml", "mtlmca", "pcca", "scml")


@pytest.mark.parametrize("name", EMBEDDERS)
def test_the_parts_sum_to_the_distance_of_the_embeddings(name: str) -> None:
    make, task = EMBEDDERS[name]
    embedder = make()
    rows = DATA.rows[:40]
    maps = embedder.maps(rows, task)
    assert maps is not None
    values, rest = compute_contributions(maps)
    z = embedder.embed(rows, task).astype(np.float64)
    d2 = ((z[0] - z[1:]) ** 2).sum(1)
    np.testing.assert_allclose(values.sum(1) + rest, d2, rtol=1e-4, atol=1e-5 * d2.max())
    assert values.shape == (39, DATA.rows.shape[1])
    assert (np.abs(rest).max() == 0) == (name in ONE_MAP)


@pytest.mark.parametrize("name", ["wpca", "wpca, unit", "ldml", "clml", "flat", "hierarchical, walled", "scml, local"])
def test_in_double_precision_the_sum_is_exact(name: str) -> None:
    maps = EMBEDDERS[name][0]().maps(DATA.rows[:30], "identity")
    assert maps is not None
    assert maps.projections is not None
    one_by_one = np.einsum("kdj,nj->nkd", maps.projections.astype(float), maps.rows.astype(float)) - maps.offsets
    z = np.einsum("nk,nkd->nd", maps.shares.astype(float), one_by_one)
    values, rest = compute_contributions(maps)
    np.testing.assert_allclose(values.sum(1) + rest, ((z[0] - z[1:]) ** 2).sum(1), rtol=1e-10)


def test_an_equal_number_in_both_faces_contributes_nothing() -> None:
    for make, task in EMBEDDERS.values():
        embedder = make()
        rows = DATA.rows[:2].copy()
        rows[1, 3] = rows[0, 3]
        maps = embedder.maps(rows, task)
        assert maps is not None
        if not isinstance(embedder, Cosine):
            assert compute_contributions(maps)[0][0, 3] == 0


def test_shifting_the_origin_of_a_descriptor_changes_no_part() -> None:
    embedder = Wpca(dim=6, unit=True).fit(DATA)
    moved = Wpca(dim=6, unit=True)
    shift = np.float32(50)
    moved.learned = dict(embedder.learned)
    moved.learned["offset"] = embedder.learned["offset"] + shift * embedder.learned["projection"].sum(1)
    here, there = (
        compute_contributions(e.maps(rows)) for e, rows in ((embedder, DATA.rows[:9]), (moved, DATA.rows[:9] + shift))
    )
    for one, other in zip(here, there, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)


def crops(count: int = 3) -> np.ndarray:
    return np.stack([Similarity().crops(*photograph(person(i), 0, 160))["grey"] for i in range(count)])


def of(embedder: Embedder, name: str, *descriptors: Spec) -> Model:
    return Model("g", Recipe(descriptors), name, embedder)


def lbp_wpca(width: int) -> Wpca:
    """A random projection of that many numbers."""
    embedder, draw = Wpca(dim=8), np.random.default_rng(0)
    embedder.learned = {
        "projection": draw.standard_normal((8, width), dtype=np.float32),
        "offset": draw.standard_normal(8).astype(np.float32),
    }
    return embedder


@pytest.mark.parametrize("cell", [10, 25])
def test_a_cell_of_lbp_is_the_cell_of_the_crop(cell: int) -> None:
    """Noise in the middle of one cell moves that cell's part, and its neighbours' by what they share of it."""
    model = of(L2(), "l2", Spec("lbp", {"cell": cell}))
    pair = np.repeat(crops(1), 2, axis=0)
    row, column = 2, 1
    down, along = (slice(at * cell + cell // 2 - 1, at * cell + cell // 2 + 1) for at in (row, column))
    pair[1, down, along] = 255 - pair[1, down, along]
    rows = model.describe({"grey": pair})
    [explanation] = explain_distances(model, rows[0], rows[1:])
    [part] = explanation.parts
    assert part.cells is not None
    assert part.cells.shape == (170 // cell, 100 // cell)
    assert np.unravel_index(part.cells.argmax(), part.cells.shape) == (row, column)
    near = np.zeros_like(part.cells, bool)
    near[row - 1 : row + 2, max(0, column - 1) : column + 2] = True
    assert (part.cells[~near] == 0).all()
    by_bin = ((rows[0] - rows[1]).reshape(UNIFORM_BINS, 170 // cell, 100 // cell).astype(float) ** 2).sum(0)
    np.testing.assert_allclose(part.cells, by_bin, rtol=1e-6)


def test_a_projection_of_faces_is_taken_apart_by_cell() -> None:
    model = of(lbp_wpca(9860), "wpca", Spec("lbp"))
    rows = model.describe({"grey": crops()})
    z = model.embed(rows).astype(float)
    for explanation, other in zip(explain_distances(model, rows[0], rows[1:]), z[1:], strict=True):
        [part] = explanation.parts
        assert part.cells is not None
        assert part.layout is not None
        assert (part.layout.rows, part.layout.columns, part.layout.size, part.crop) == (17, 10, 10, "grey")
        assert explanation.rest == 0
        assert part.cells.sum() == pytest.approx(explanation.distance, rel=1e-9)
        assert explanation.distance == pytest.approx(((z[0] - other) ** 2).sum(), rel=1e-4)


def test_each_descriptor_has_its_part_and_one_without_cells_has_none(tmp_path: Path) -> None:
    described = Spec("onnx", {"manifest": str(tiny_onnx(tmp_path))})
    recipe = Recipe((Spec("lbp"), described))
    model = Model("g", recipe, "wpca", lbp_wpca(recipe.dim))
    colour = np.random.default_rng(0).integers(0, 255, (2, 112, 112, 3), dtype=np.uint8)
    rows = model.describe({"grey": crops(2), "colour": colour})
    [explanation] = explain_distances(model, rows[0], rows[1:])
    assert [p.descriptor for p in explanation.parts] == ["lbp", "onnx"]
    assert explanation.parts[0].cells is not None
    assert explanation.parts[1].cells is None
    assert sum(p.contribution for p in explanation.parts) == pytest.approx(explanation.distance)
    assert explanation.parts[1].contribution != 0


class Curved(L2):
    """An embedder that is no linear map."""

    def _embed(self, rows: Rows, task: str) -> Rows:
        return rows**2

    def maps(self, rows: Rows, task: str = "identity") -> None:  # type: ignore[override]
        return None


def test_a_nonlinear_embedder_and_a_wrong_shape_are_refused() -> None:
    rows = Lbp().describe(crops(2))
    with pytest.raises(NotLinear, match="curved is not made of linear maps"):
        explain_distances(of(Curved(), "curved", Spec("lbp")), rows[0], rows[1:])
    with pytest.raises(WrongShape):
        explain_distances(of(lbp_wpca(9), "wpca", Spec("lbp")), rows[0], rows[1:])
