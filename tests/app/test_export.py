"""`likeness export-embeddings`: the exported file ranks as the method does, and nothing is learned from test photos."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

from app.cli.datasets import features
from app.cli.datasets.export import build_training_set
from app.cli.datasets.lfw import CROP_KINDS
from app.cli.main import app
from ml import registry
from ml.distances.signed import Signed
from ml.embedders.base import Embedder
from ml.evaluation import protocols
from ml.types import CropKind, Crops
from tests.gallery import crops
from tests.ml.tiny_cnn import tiny_cnn
from tests.ml.tiny_onnx import tiny_onnx

PEOPLE, SHOTS = 16, 4
NAMES = [f"P{n:02d}/P{n:02d}_{shot + 1:04d}.jpg" for n in range(PEOPLE) for shot in range(SHOTS)]
METHODS = registry.names("embedders")
Exported = dict[str, NDArray[Any]]


def write_data(home: Path) -> Path:
    """Write cached crops and lists of names. `data` needs no photo, since no crop is cut again."""
    cache, lists = home / "cache", home / "data" / "lfw-protocol"
    cache.mkdir(parents=True)
    lists.mkdir(parents=True)
    face_crops = [crops(n, 100 * n + shot, 1.0) for n in range(PEOPLE) for shot in range(SHOTS)]
    for kind in CROP_KINDS:
        np.save(cache / f"{kind}.npy", np.stack([np.asarray(Image.open(io.BytesIO(d[kind]))) for d in face_crops]))
    (cache / "names.txt").write_text("\n".join(NAMES) + "\n")
    (lists / "queries-0.txt").write_text("\n".join(NAMES[::SHOTS]) + "\n")
    unseen = [f"train P{n:02d}" for n in range(10)] + [f"query {NAMES[SHOTS * n]}" for n in range(10, PEOPLE)]
    (lists / "disjoint-0.txt").write_text("\n".join(unseen) + "\n")
    pairs = [[f"P{n:02d}\t1\t2", f"P{n:02d}\t1\tP{n + 1:02d}\t1"] for n in range(0, PEOPLE, 2)]
    (lists / "pairs.txt").write_text("\n".join([f"{len(pairs)}\t1", *(row for fold in pairs for row in fold)]) + "\n")
    return home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("export"))


SMALL = {
    "dim": 5,
    "steps": 20,
    "first_steps": 20,
    "k": 2,
    "pairs": 200,
    "auxiliary_pairs": 200,
    "local_steps": 10,
    "depth": 2,
}
SMALL |= {"bases": 30, "regions": 3, "min_pairs": 5, "folds": 2, "methods": ["wccn", "wpca", "ldml"]}


def small_options(method: str) -> dict[str, Any]:
    """Return options that make the method small enough for a few faces."""
    known = {o.name for o in registry.list_options("embedders", method)}
    return {name: value for name, value in SMALL.items() if name in known}


def export(home: Path, method: str, descriptor: str = "lbp", protocol: str = "", **more: Any) -> Exported:
    out = home / "out.npz"
    folder = home / "data" / "lfw-protocol"
    command = ["export-embeddings", "lfw", "--data", str(home / "data"), "--cache", str(home / "cache")]
    command += ["--method", method, "--descriptor", descriptor, "--out", str(out)]
    command += ["--protocol", protocol or str(folder / "disjoint-0.txt")]
    command += [part for name, value in more.items() for part in ("--option", f"{name}={json.dumps(value)}")]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    with np.load(out) as arrays:
        return dict(arrays)


def score_pairs(exported: Exported) -> NDArray[np.float64]:
    """Score all pairs by the exported file alone; a greater score is nearer."""
    x, metric = exported["x"].astype(np.float64), str(exported["metric"])
    if metric == "l2":
        return np.stack([-((x - row) ** 2).sum(1) for row in x])
    if metric == "ip":
        return np.asarray(x @ x.T)
    assert metric.startswith("average: ")
    parts = np.split(x, exported["ends"][:-1], axis=1)
    terms = zip(parts, exported["shares"], exported["biases"], strict=True)
    return np.asarray(np.sum([share / (1 + np.exp(-(p @ p.T) - bias)) for p, share, bias in terms], axis=0))


def fit_and_measure(home: Path, method: str, descriptor: str, chosen: dict[str, Any]) -> NDArray[np.float64]:
    """The method's own distances, fitted here on the training side."""
    crops: dict[CropKind, Crops] = {kind: np.load(home / "cache" / f"{kind}.npy") for kind in CROP_KINDS}
    sides = protocols.read("disjoint-0", home / "data" / "lfw-protocol", NAMES)
    recipe = features.build_recipe(descriptor, crops, sides.training, (home / "cache").resolve())
    rows = recipe.describe(crops)
    fitted: Embedder = registry.build("embedders", method, **chosen)
    fitted.fit(build_training_set(rows[sides.training], [NAMES[i] for i in sides.training], recipe.blocks))
    z = fitted.embed(rows)
    return fitted.metric.distances(z, z).astype(np.float64)


def rank_alike(scores: NDArray[np.float64], distances: NDArray[np.float64], slack: float) -> bool:
    """Whether no two faces stand in the other order before any query, but for those nearer to each other than that."""
    swapped = (scores[:, :, None] > scores[:, None, :]) & (distances[:, :, None] > distances[:, None, :] + slack)
    return not swapped.any()


@pytest.mark.parametrize("descriptor", ["lbp", "lbp+sift"])
@pytest.mark.parametrize("method", METHODS)
def test_the_file_ranks_as_the_method_does(home: Path, method: str, descriptor: str) -> None:
    chosen = small_options(method)
    exported = export(home, method, descriptor, **chosen)
    assert exported["f"].tolist() == NAMES
    assert exported["x"].dtype == np.float32
    distances = fit_and_measure(home, method, descriptor, chosen)
    slack = 1e-4 * distances.std() if method != "subsml" else 2e-3 * distances.std()
    assert rank_alike(score_pairs(exported), distances, slack)
    alone = method != "cosim_average" or descriptor == "lbp"
    assert (str(exported["metric"]) in ("l2", "ip")) == alone


@pytest.mark.parametrize(
    ("method", "descriptor", "protocol"),
    [
        ("subsml", "lbp+cslbp", "disjoint-0.txt"),
        ("subsml", "lbp+cslbp", "view2:3"),
        ("subsml", "lbp+cslbp", "queries-0.txt"),
        ("wpca", "fisher", "disjoint-0.txt"),  # its vocabulary is learned too, from the same training side
    ],
)
@pytest.mark.usefixtures("small_vocabularies")
def test_test_photos_do_not_change_the_fit(tmp_path: Path, method: str, descriptor: str, protocol: str) -> None:
    home = write_data(tmp_path)
    lists = home / "data" / "lfw-protocol"
    protocol_option = protocol if ":" in protocol else str(lists / protocol)
    chosen = small_options(method)
    before = export(home, method, descriptor, protocol_option, **chosen)
    training = protocols.read(protocol.removesuffix(".txt"), lists, NAMES).training
    others = np.setdiff1d(np.arange(len(NAMES)), training)
    for kind in CROP_KINDS:
        crops = np.load(home / "cache" / f"{kind}.npy")
        crops[others] = np.random.default_rng(0).integers(0, 256, crops[others].shape)
        np.save(home / "cache" / f"{kind}.npy", crops)
    for path in [*(home / "cache").glob("fisher*"), *(home / "cache").glob("*.safetensors")]:
        path.unlink()
    after = export(home, method, descriptor, protocol_option, **chosen)
    name = "signed" if method == "subsml" else "x"
    np.testing.assert_array_equal(after[name][training], before[name][training])
    assert not np.array_equal(after[name][others], before[name][others])


@pytest.mark.usefixtures("small_vocabularies")
@pytest.mark.parametrize("descriptor", ["sift", "cslbp", "fplbp", "fisher", "onnx", "cnn", "onnx+lbp"])
def test_every_descriptor_can_be_named(home: Path, tmp_path: Path, descriptor: str) -> None:
    files: dict[str, Callable[[Path], Path]] = {"onnx": tiny_onnx, "cnn": tiny_cnn}
    parts = [str(files[one](tmp_path)) if one in files else one for one in descriptor.split("+")]
    exported = export(home, "cosine", "+".join(parts))
    again = export(home, "cosine", "+".join(parts))
    np.testing.assert_array_equal(exported["x"], again["x"])
    same = np.repeat(np.arange(PEOPLE), SHOTS)[:, None] == np.repeat(np.arange(PEOPLE), SHOTS)
    similarities = score_pairs(exported)
    np.fill_diagonal(similarities, np.nan)
    assert np.nanmean(similarities[same]) > np.nanmean(similarities[~same])


def export_refused(home: Path, *arguments: str) -> str:
    base = ["export-embeddings", "lfw", "--data", str(home / "data"), "--cache", str(home / "cache")]
    lists = home / "data" / "lfw-protocol" / "queries-0.txt"
    result = CliRunner().invoke(app, [*base, "--out", str(home / "no.npz"), "--protocol", str(lists), *arguments])
    assert result.exit_code == 2
    return result.output


def test_an_unknown_name_is_refused_with_the_known_names(home: Path) -> None:
    assert "there are: auto, clml" in export_refused(home, "--method", "none")
    assert "cslbp" in export_refused(home, "--method", "l2", "--descriptor", "none")
    assert "manifest" in export_refused(home, "--method", "l2", "--descriptor", "onnx")
    assert "no manifest at" in export_refused(home, "--method", "l2", "--descriptor", "none.json")
    assert "has no option" in export_refused(home, "--method", "cosine", "--dim", "5")


def test_an_export_that_needs_a_signed_product_says_so() -> None:
    rows = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    portable = Signed(2).to_portable(rows)
    assert "last 2 columns" in portable.metric
    np.testing.assert_array_equal(portable.rows, rows)


def test_the_error_of_an_exported_subsml_is_at_most_the_stated_one() -> None:
    rng = np.random.default_rng(1)
    inner, q = rng.normal(size=(300, 8)), rng.uniform(0, 2, (300, 1))
    rows = np.concatenate([inner, (1 - q) / 2**0.5, (1 + q) / 2**0.5], axis=1).astype(np.float32)
    metric = Signed(1)
    portable = metric.to_portable(rows)
    differences = portable.rows @ portable.rows.T + metric.distances(rows, rows)
    assert np.ptp(differences[~np.eye(300, dtype=bool)]) / 2 < portable.max_error < 2e-3
