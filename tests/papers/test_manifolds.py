"""001's tables on synthetic digits and people, from computations to pages, and the meaning of the figures."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ml.layers.base import random_start
from ml.types import CropKind, Crops, Rows
from papers.harness import page_writer, runner
from papers.harness.photos import Photos
from papers.harness.result_store import ResultStore
from papers.harness.run_context import RunContext
from papers.harness.table_types import Scope
from papers.manifolds import digits, end_to_end, five_layers, frozen_network, frozen_network_table
from papers.manifolds.chapter import chapter
from papers.manifolds.digits_table import DigitExperiment
from papers.manifolds.end_to_end_table import EndToEndExperiment
from papers.manifolds.five_layers_table import FiveLayerExperiment
from papers.manifolds.frozen_network_table import FrozenNetworkExperiment
from papers.manifolds.head_comparison import PairedScores, read_correct
from papers.manifolds.head_layers import HEADS, RATES, HeadTraining, choose_rate, describe_matrix, flatten_matrix
from papers.manifolds.head_training import Diverged, HeadTrainingData, check_converged, measure_overheads, train_head
from papers.manifolds.mnist import read, split_digits
from papers.manifolds.people_split import split_people as people_sides

PEOPLE = {"lfw": (4, 20), "celeba": (14, 3)}
"""How many, with how many photos each."""


class ColourPhotos(Photos):
    """Each person is a colour and a direction; one person is in both sets."""

    def has(self, photo_set: str) -> bool:
        return photo_set in PEOPLE

    def names(self, photo_set: str) -> list[str]:
        people, shots = PEOPLE[photo_set]
        return [f"{photo_set}{p:02d}/{s}.jpg" for p in range(people) for s in range(shots)]

    def crops(self, photo_set: str, kind: CropKind) -> Crops:
        who, draw = self._who(photo_set), np.random.default_rng(1)
        noise = draw.integers(-60, 60, (len(who), 112, 112, 3))
        colours = draw.integers(60, 190, (who.max() + 1, 1, 1, 3))
        return np.asarray((colours[who] + noise).clip(0, 255), np.uint8)

    def rows(self, photo_set: str, features: str) -> Rows:
        who, draw = self._who(photo_set), np.random.default_rng(len(photo_set))
        middles = draw.normal(size=(who.max() + 1, 128))
        middles[0] = 12.0 * np.eye(128)[0]  # the same person in both sets
        rows = middles[who] + 0.6 * draw.normal(size=(len(who), 128))
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)

    @staticmethod
    def _who(photo_set: str) -> NDArray[np.int64]:
        people, shots = PEOPLE[photo_set]
        return np.repeat(np.arange(people), shots)


def write_digits(folder: Path) -> None:
    """Write 400 noisy patterns of ten kinds in the format of MNIST's files."""
    draw = np.random.default_rng(0)
    values = draw.integers(0, 10, 400).astype(np.uint8)
    pixels = draw.integers(0, 140, (10, 784))[values] + draw.integers(0, 115, (400, 784))
    folder.mkdir(parents=True)
    for name, head, data in (("images-idx3", 16, pixels), ("labels-idx1", 8, values)):
        (folder / f"t10k-{name}-ubyte.gz").write_bytes(gzip.compress(bytes(head) + data.astype(np.uint8).tobytes()))


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> RunContext:
    root = tmp_path_factory.mktemp("world")
    write_digits(root / "data" / "mnist")
    return RunContext(ColourPhotos(root / "data", root), ResultStore(root / "results"), Scope(1, 1))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (end_to_end, five_layers):
        monkeypatch.setattr(module, "BATCH", 10)
    for part, size in ((DigitExperiment, (3, 1, 60)), (FiveLayerExperiment, (3, 1))):
        monkeypatch.setattr(part, "sizes", dict.fromkeys((True, False), size))
    for name, value in {"steps": 30, "min_photos": 10, "options": {"steps": 10}}.items():
        monkeypatch.setattr(FrozenNetworkExperiment, name, value)
    monkeypatch.setattr(frozen_network_table, "DIMS", (32,))
    monkeypatch.setattr(EndToEndExperiment, "first", 2)
    monkeypatch.setattr(EndToEndExperiment, "steps", 2)
    for head in HEADS:
        monkeypatch.setitem(RATES, head, RATES[head][1:3])


def test_a_quick_run_uses_fixed_rates_and_skips_unseen_people(context: RunContext) -> None:
    made = chapter(RunContext(context.photos, context.store, Scope(1, 1, True)))
    kinds = {str(computation.key["what"]) for computation in made.computations()}
    assert not [kind for kind in kinds if "inner" in kind or "faces" in kind]
    runner.compute_missing([made], context.store)
    assert [t.name for t in made.tables()] == [
        "manifolds-gains", "manifolds-table-2", "manifolds-stl10", "manifolds-quoted",
    ]  # fmt: skip


def test_the_whole_chapter_is_computed_and_written_as_a_page(context: RunContext, tmp_path: Path) -> None:
    made = chapter(context)
    runner.compute_missing([made], context.store)
    tables = made.tables()
    page = page_writer.write_chapter(
        tmp_path, made.name, made.title, "likeness reproduce manifolds", tables, context.store
    )
    content = json.loads((tmp_path / "manifolds.json").read_text())
    assert [t["name"] for t in content["tables"]] == [
        "manifolds-gains", "manifolds-table-2", "manifolds-stl10", "manifolds-quoted", "manifolds-frozen",
        "manifolds-whole",
    ]  # fmt: skip
    by_name = {t["name"]: {r["name"]: r for r in t["rows"]} for t in content["tables"]}
    assert len(by_name["manifolds-gains"]) == 3 * 5
    assert {r["verdict"] for r in by_name["manifolds-quoted"].values()} == {"not possible here"}
    conv = by_name["manifolds-table-2"]["Conv"]
    assert conv["paper"]["error"] == 14.84
    assert "reduction from Conv" not in conv["figures"]
    assert conv["figures"]["epoch"]["value"] == 100
    count, computation = conv["works"].pop("count"), conv["works"]
    known = [w for w in made.computations() if w.key == computation]
    assert len(known) == count == 1
    assert conv["figures"]["error"]["value"] == pytest.approx(100 * context.result(known[0]).arrays["wrong"].mean())
    gain = by_name["manifolds-gains"]["digits: Stiefel"]["figures"]["gain"]["value"]
    stiefel = by_name["manifolds-table-2"]["Stiefel"]["figures"]
    assert gain == pytest.approx(conv["figures"]["error"]["value"] - stiefel["error"]["value"])
    assert stiefel["reduction from Conv"]["value"] == pytest.approx(gain)
    assert "celeba0" not in page.read_text()
    assert (tmp_path / "manifolds-figure-1.svg").exists()
    assert not [w for w in made.computations() if not context.store.has(w)]


def test_all_heads_but_the_one_that_begins_elsewhere_start_with_the_same_distances(context: RunContext) -> None:
    start, rows = random_start(784, 20, 3), read(context.photos.data).pixels[:9]
    wanted = torch.cdist(rows @ start, rows @ start)
    for head in HEADS.values():
        z = head.make(start)(rows).detach()
        torch.testing.assert_close(torch.cdist(z, z), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("inner", [True, False])
def test_training_and_test_digits_are_disjoint_and_the_inner_split_uses_only_training_digits(inner: bool) -> None:
    taught, tested = split_digits(400, 5, inner)
    assert not set(taught.tolist()) & set(tested.tolist())
    assert len(taught) == len(tested) == (100 if inner else 200)
    assert set(taught.tolist()) <= set(split_digits(400, 5, False)[0].tolist())


def test_a_digit_is_classified_by_its_nearest_training_digit(context: RunContext) -> None:
    digit_set = read(context.photos.data)
    taught, tested = split_digits(len(digit_set.values), 0, False)
    far = [
        min(taught.tolist(), key=lambda t: float((digit_set.pixels[a] - digit_set.pixels[t]).norm()))
        for a in tested.tolist()
    ]
    assert (
        digit_set.wrong(digit_set.pixels, taught, tested).tolist()
        == (digit_set.values[far] != digit_set.values[tested]).tolist()
    )


def test_the_rate_with_the_smallest_error_is_chosen_and_a_diverged_fit_is_never_chosen(context: RunContext) -> None:
    errors = context.store.do(digits.make_choice_computation(context, "qconv-own", 2)).record["errors"]
    assert errors.keys() == {"0.01", "0.03"}
    assert choose_rate({"0.1": 0.3, "0.3": None, "0.01": 0.2, "0.03": 0.2}) == 0.01
    rows = read(context.photos.data)
    data = HeadTrainingData(rows.values, lambda places, _: rows.pixels[torch.from_numpy(places)])
    start = random_start(784, 20)
    layer, record = train_head(data, torch.nn.Identity(), start, HeadTraining("plain", 1e60, 3, 1.0), lambda *_: None)
    assert record["astray"] > 0
    assert torch.equal(layer.matrix.detach(), start), "it is as it was when all was well"
    with pytest.raises(Diverged):
        check_converged(record)


def test_the_number_of_axes_is_the_effective_rank_of_the_map() -> None:
    turn = torch.linalg.qr(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)))[0]
    assert describe_matrix(3 * turn)["axes"] == pytest.approx(4, rel=1e-4)
    assert describe_matrix(turn * torch.tensor([1.0, 1.0, 1e-4, 1e-4]))["axes"] == pytest.approx(2, rel=1e-3)
    assert describe_matrix(3 * turn)["scale"] == pytest.approx(36, rel=1e-4)
    assert describe_matrix(flatten_matrix(turn * torch.tensor([5.0, 1.0, 0.2, 1.0])))["axes"] == pytest.approx(
        4, rel=1e-4
    )


def test_overheads_are_ratios_of_times_measured_in_turns() -> None:
    def compute(times: int) -> float:
        return float(sum(np.linalg.svd(np.ones((60, 60)))[1][0] for _ in range(times)))

    overheads = measure_overheads({"base": lambda _: compute(1), "more": lambda _: compute(6)}, "base", 20, 5)
    assert overheads["base"] == [1.0] * 5
    assert 1.5 < np.median(overheads["more"]) < 24, "6, beside the threads of other tests"


def test_photos_of_a_person_are_halved_and_only_people_with_enough_are_classes(context: RunContext) -> None:
    classes = five_layers.classes(context.photos, "celeba", 3)
    taught, tested = classes.sides(0)
    assert np.bincount(classes.people[taught]).tolist() == [2] * 14
    assert np.bincount(classes.people[tested]).tolist() == [1] * 14
    assert tuple(five_layers.five_layers(0)(classes.pictures[:2]).shape) == (2, five_layers.WIDTH)
    with pytest.raises(ValueError, match="need at least one array"):
        five_layers.classes(context.photos, "celeba", 4)


def test_people_who_are_in_both_sets_are_left_out_of_training(context: RunContext) -> None:
    sides = people_sides(context.photos, 10)
    assert sides.alike == 1
    assert sides.taught.min() == PEOPLE["celeba"][1]
    assert len(sides.queries) == 80


def test_the_choice_of_a_rate_on_faces_measures_errors_between_0_and_1(context: RunContext) -> None:
    errors = context.store.do(frozen_network.make_choice_computation(context, "stiefel", 8, 20, 10)).record["errors"]
    assert all(0 <= error <= 1 for error in errors.values())


def test_pairs_are_compared_within_their_own_split(context: RunContext) -> None:
    both = [context.store.do(digits.make_baseline_computation(context, name, 1, 0)) for name in ("pca", "start")]
    first, second = (PairedScores.of([one], read_correct, "asked") for one in both)
    gain = first.over(second).difference
    assert gain.value == pytest.approx(float((both[1].arrays["wrong"] * 1.0 - both[0].arrays["wrong"]).mean()))
    assert first.over(first).p == 1
