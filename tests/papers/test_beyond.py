"""The tables beyond the papers, on a small set of random descriptors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.calibration import Calibration
from ml.embedders.base import Embedder, TrainingSet
from ml.embedders.l2 import L2
from ml.evaluation.report import rank_protocol, summarise
from ml.types import Ids, Rows
from papers.beyond import celeba, cnn_choice, cnn_compression, fused_descriptors, label_counts
from papers.beyond import chapter as beyond
from papers.beyond import unseen_people as never_seen
from papers.beyond.chapter import chapter
from papers.beyond.pair_selection import PAIR_SELECTIONS, Labels, half_the_same, suggested
from papers.beyond.transfer import make_transfer_table
from papers.clml.fits import ClmlFits, Options
from papers.clml.grids import START_OPTIONS
from papers.harness import page_writer, runner
from papers.harness.photos import MODEL, Photos
from papers.harness.result_store import ResultMissing, ResultStore
from papers.harness.results import figure
from papers.harness.run_context import Method, RunContext
from papers.harness.table_types import Chapter, Result, Scope

PEOPLE, SHOTS = 60, 5
WIDTHS = {"lbp": 160, "fisher": 180, "sift": 40, MODEL: 128}
SETS = {"lfw": PEOPLE, "celeba": 30, "distractors": 10}
QUICK, WHOLE = {"steps": 8, "groups": 10, "others": 10}, Scope(2, 1)
SHORT = {"steps": 4, "held_out": 0.0, "axes": 60, "length": "unit", "start": "pca"}
CANDIDATES = (("ldml", QUICK), ("clml", QUICK | {"first": 8, "k": 2}), ("ldml", {"steps": 1, "start": "random"}))
FAST = {case: Options(QUICK, {"first": 8}, 2) for case in START_OPTIONS}


class DirectionPhotos(Photos):
    """People are directions in each descriptor, LBP a hundred times as large; one of CelebA10k is in LFW too."""

    def has(self, photo_set: str) -> bool:
        return photo_set in SETS

    @property
    def has_model(self) -> bool:
        return True

    def names(self, photo_set: str) -> list[str]:
        return [f"{photo_set}{p:02d}/{photo_set}{p:02d}_{s}.jpg" for p in range(SETS[photo_set]) for s in range(SHOTS)]

    def blocks(self, features: str) -> tuple[int, ...]:
        return tuple(WIDTHS[one] for one in features.split("+"))

    def rows(self, photo_set: str, features: str) -> Rows:
        return np.concatenate([self._one(photo_set, one) for one in features.split("+")], axis=1)

    def _one(self, photo_set: str, feature: str) -> Rows:
        draw = np.random.default_rng([len(photo_set), WIDTHS[feature]])
        middles = draw.normal(size=(SETS[photo_set], WIDTHS[feature]))
        middles[0] = 3.0
        rows = np.repeat(middles, SHOTS, axis=0) + 1.5 * draw.normal(size=(SETS[photo_set] * SHOTS, WIDTHS[feature]))
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(unit * (100 if feature == "lbp" else 1), np.float32)


class PhotosWithoutNetwork(DirectionPhotos):
    """The same without the network."""

    @property
    def has_model(self) -> bool:
        return False


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Photos:
    root = tmp_path_factory.mktemp("world")
    photos, lists = DirectionPhotos(root / "data", root / "cache"), root / "data" / "lfw-protocol"
    lists.mkdir(parents=True)
    names = np.array(photos.names("lfw")).reshape(PEOPLE, SHOTS)
    for i in range(2):
        (lists / f"queries-{i}.txt").write_text("\n".join(names[:, i]) + "\n")
        fitted = [f"train {name.split('/')[0]}" for name in names[::2, 0]]
        (lists / f"disjoint-{i}.txt").write_text("\n".join([*fitted, *(f"query {q}" for q in names[1::2, i])]) + "\n")
    return photos


def small(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(beyond, "GRIDS", {})
    patch.setattr(label_counts, "SIZES", (20, 60))
    for module in (never_seen, fused_descriptors):
        patch.setattr(module, "DIMS", (32,))
    for module in (cnn_choice, cnn_compression):
        patch.setattr(module, "DIMS", (8,))
    patch.setattr(cnn_choice, "CANDIDATES", CANDIDATES)
    for name, value in {"CURVE_DIMS": (4, 8), "MIN_MAP": {8: 1.0}, "STRETCH_MAP": {8: 101.0}}.items():
        patch.setattr(cnn_compression, name, value)


def made(photos: Photos, scope: Scope) -> tuple[RunContext, Chapter]:
    context = RunContext(photos, ResultStore(photos.cache / "results"), scope)
    return context, chapter(context, FAST)


@pytest.fixture(scope="module")
def content(photos: Photos, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return all tables by name, as in the JSON, and the page."""
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        context, past = made(photos, WHOLE)
        runner.compute_missing([past], context.store)
        page = page_writer.write_chapter(
            out, past.name, past.title, "likeness reproduce beyond", past.tables(), context.store
        )
    tables = json.loads((out / "beyond.json").read_text())["tables"]
    return {t["name"]: t for t in tables} | {"page": page.read_text(), "out": out}


def row_of(table: dict[str, Any], name: str) -> dict[str, Any]:
    [row] = [row for row in table["rows"] if row["name"] == name]
    return dict(row)


def test_the_page_has_every_table_and_no_persons_name(content: dict[str, Any]) -> None:
    assert content.keys() >= {"cnn", "never-seen", "across", "labels", "fused"}
    assert {p.stem for p in Path(content["out"]).glob("*.svg")} == {"beyond-cnn", "beyond-labels"}
    assert "lfw0" not in content["page"]
    assert all(row["commits"] for name in ("cnn", "across", "labels") for row in content[name]["rows"])


def test_a_row_equals_the_protocols_figures_for_its_embeddings(photos: Photos, content: dict[str, Any]) -> None:
    context, _ = made(photos, WHOLE)
    computation = context.retrieval(FAST["lbp", "disjoint"].of_clml(), "lbp", "disjoint-0")
    other = context.retrieval(FAST["lbp", "disjoint"].of_clml(), "lbp", "disjoint-1")
    ranked = [
        rank_protocol(context.result(w).arrays["lfw"], context.protocol(w.key["protocol"]))
        for w in (computation, other)
    ]
    report = summarise(ranked, protocol="disjoint")
    shown = row_of(content["never-seen"], "LBP, CLML, k = 2, d = 32")["figures"]
    assert shown["mAP"]["value"] == pytest.approx(100 * report.mean_average_precision.value)
    assert shown["mAP"]["draws"] == 2
    assert any(note.startswith("LBP, CLML, k = 2, d = 32, less LDML") for note in content["never-seen"]["notes"])


def test_a_fit_on_celeba_is_measured_on_every_draw_of_lfw(photos: Photos, content: dict[str, Any]) -> None:
    context, _ = made(photos, WHOLE)
    [row] = [r for r in content["across"]["rows"] if r["name"] == "LBP, L2"]
    here = [context.result(context.retrieval(Method("l2"), "lbp", f"queries-{i}")) for i in range(2)]
    assert row["figures"]["fitted on CelebA10k: mAP"]["value"] == pytest.approx(figure(here, "mAP").value)
    wpca = Method("wpca", 32, {"unit": True}).build().fit(celeba.people(context, "lbp"))
    ranked = [rank_protocol(wpca.embed(photos.rows("lfw", "lbp")), context.protocol(f"queries-{i}")) for i in range(2)]
    wanted = 100 * summarise(ranked, protocol="queries").mean_average_precision.value
    shown = row_of(content["across"], "LBP, WPCA-cosine, d = 32")["figures"]
    assert shown["fitted on CelebA10k: mAP"]["value"] == pytest.approx(wanted)


def test_columns_of_one_row_differ_by_data_alone(photos: Photos) -> None:
    context = RunContext(photos, ResultStore(photos.cache / "results"), WHOLE)
    by_kind = {"queries": Options(QUICK, {"first": 8}, 3), "disjoint": Options(QUICK, {"first": 8}, 2)}
    part = make_transfer_table(ClmlFits(context, {case: by_kind[case[1]] for case in START_OPTIONS}))
    assert part is not None
    assert {w.key["options"]["k"] for w in part.computations if w.key["method"] == "clml"} == {2}


def test_columns_of_other_options_share_a_name_without_k(content: dict[str, Any]) -> None:
    row = row_of(content["fused"], "fused, CLML, d = 32")
    wanted = dict(FAST["fisher", "queries"].of_clml().options)
    assert row["about"]["options"] == {"closed set": wanted, "never seen": wanted}
    assert any(note.startswith("fused, CLML, d = 32, less FV alone") for note in content["fused"]["notes"])
    assert not any("k = " in row["name"] for row in content["fused"]["rows"])


def test_the_header_and_rows_name_their_draws(content: dict[str, Any]) -> None:
    for name, kind in (("never-seen", "disjoint"), ("across", "queries")):
        assert f"LBP's L2, and LBP at d = 32: `{kind}-0..1`; all others" in content[name]["header"]
        for row in content[name]["rows"]:
            many = row["name"] == "LBP, L2" or (row["name"].startswith("LBP") and row["name"].endswith("d = 32"))
            assert {f["draws"] for c, f in row["figures"].items() if c.endswith("mAP")} == {2 if many else 1}


def test_without_the_network_no_computation_uses_it_or_celeba(photos: Photos, tmp_path: Path) -> None:
    """Without it, people in CelebA10k who look like somebody in LFW cannot be found."""
    context = RunContext(PhotosWithoutNetwork(photos.data, photos.cache), ResultStore(tmp_path), WHOLE)
    past = chapter(context, FAST)
    computations = [*past.computations(), *past.guessed()]
    assert {"lbp", "fisher"} <= {w.key["features"] for w in computations}
    assert not [w.name for w in computations if MODEL in w.key["features"] or "celeba" in str(w.key)]


def test_the_chosen_options_are_described_only_after_the_choice(photos: Photos, tmp_path: Path) -> None:
    context = RunContext(photos, ResultStore(tmp_path), WHOLE)
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        with pytest.raises(ResultMissing, match="others are chosen"):
            cnn_choice.describe_choices(context)


def test_a_note_names_the_draws_with_too_few_pairs(photos: Photos, tmp_path: Path) -> None:
    learned_by_size = ({"20": False, "60": False}, {"20": True, "60": False}, {"20": True, "60": True})
    results_by_way = {label_counts.SUGGESTED: [Result({"learned": one}, {}, tmp_path) for one in learned_by_size]}
    [note] = label_counts._notes(results_by_way, (20, 60))
    assert "at 20 (1 of 3 draws), 60 (2 of 3 draws);" in note


def test_lookalikes_of_lfw_people_are_not_in_the_training_set(photos: Photos) -> None:
    context, _ = made(photos, WHOLE)
    kept = celeba.people(context, "lbp")
    assert len(kept.rows) == (SETS["celeba"] - 1) * SHOTS
    both = celeba.together(context.identities("lbp", context.protocol("disjoint-0")), kept)
    [task] = both.tasks
    assert len(np.unique(task.people)) == PEOPLE // 2 + SETS["celeba"] - 1
    assert len(both.rows) == len(task.faces) == len(task.values)


def test_fewer_bits_lose_little_and_then_more(photos: Photos, content: dict[str, Any]) -> None:
    rows = photos.rows("lfw", MODEL)
    known = np.arange(0, len(rows), 2)
    errors = {bits: np.abs(cnn_compression.rounded(rows, known, bits)[known] - rows[known]).mean() for bits in (8, 4)}
    assert errors[8] < errors[4] / 8
    assert len(np.unique(cnn_compression.rounded(rows, known, 4)[:, 0])) <= 16
    assert row_of(content["cnn"], "cosine, 128 numbers of 4 bits")["figures"]["bytes per face"]["value"] == 64


def test_the_best_candidate_is_chosen(photos: Photos, content: dict[str, Any]) -> None:
    context, _ = made(photos, WHOLE)
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        tried = cnn_choice.tried(context, 8, "disjoint")
        scores = [figure([context.result(computation)], "mAP").value for computation in tried]
        taken = cnn_choice.chosen(context, 8, "disjoint")
        assert taken == cnn_choice.candidates(8)[int(np.argmax(scores))] != cnn_choice.candidates(8)[0]
    assert {w.key["protocol"] for w in tried} == {"inner-disjoint-0"}
    closed = context.protocol("queries-0")
    assert set(context.protocol("inner-queries-0").queries) <= set(closed.training)
    shown = row_of(content["cnn"], "learned, 8, as chosen")
    options = shown["works"]["options"]
    assert dict(taken.options) in (options if isinstance(options, list) else [options])
    assert shown["cause"].startswith("at least 1 closed set: mAP: reached; stretch 101 closed set: mAP: missed, ")


def test_options_are_chosen_before_anything_is_fitted_with_them(photos: Photos, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        past = chapter(RunContext(photos, ResultStore(tmp_path), WHOLE), FAST)
        assert {w.key["protocol"] for w in past.computations()} == {"inner-queries-0", "inner-disjoint-0"}
        assert any(w.key["protocol"] == "disjoint-1" for w in past.guessed())


@pytest.mark.parametrize("method", [Method("ldml", 8, QUICK | {"axes": 60}), Method("stiefel", 8, SHORT)])
def test_a_fit_within_the_axes_is_the_fit_itself(method: Method, photos: Photos) -> None:
    """This holds for concatenated descriptors too: the axes weigh them as the embedder does."""
    context, many = RunContext(photos, ResultStore(photos.cache / "axes"), WHOLE), "lbp+fisher"
    kept = context.store.do(context.retrieval(method, many, "disjoint-0")).arrays["lfw"]
    whole = method.build().fit(context.identities(many, context.protocol("disjoint-0"))).embed(photos.rows("lfw", many))
    np.testing.assert_allclose(kept @ kept.T, whole @ whole.T, atol=2e-3 * float((whole**2).sum(1).max()))


@pytest.fixture
def faces() -> tuple[Rows, Ids]:
    draw = np.random.default_rng(0)
    people = np.repeat(np.arange(30), 4)
    return (draw.normal(size=(30, 6))[people] + 0.4 * draw.normal(size=(120, 6))).astype(np.float32), people


@pytest.mark.parametrize("way", PAIR_SELECTIONS)
def test_each_selection_asks_the_wanted_number_of_distinct_pairs(way: str, faces: tuple[Rows, Ids]) -> None:
    known = Labels(*faces, np.random.default_rng(1))
    for wanted in (10, 40):
        PAIR_SELECTIONS[way](known, L2(), fit_nothing, wanted - len(known.pairs))
        assert len(known.pairs) == wanted
    assert len(np.unique(known.pairs, axis=0)) == 40
    assert (known.pairs[:, 0] < known.pairs[:, 1]).all()
    [task] = known.training_set().tasks
    assert np.isnan(task.values).all()
    assert (known.people[task.pairs[:, 0]] == known.people[task.pairs[:, 1]]).tolist() == task.same.tolist()


def test_half_of_the_known_are_the_same(faces: tuple[Rows, Ids]) -> None:
    known = Labels(*faces, np.random.default_rng(1))
    half_the_same(known, L2(), fit_nothing, 60)
    assert known.same.sum() == 30


def test_suggested_pairs_are_near_the_threshold(faces: tuple[Rows, Ids]) -> None:
    known = Labels(*faces, np.random.default_rng(1))
    half_the_same(known, L2(), fit_nothing, 60)
    threshold = known.calibration(fit_nothing).distance(50.0)  # type: ignore[union-attr]
    suggested(known, L2(), fit_nothing, 20)
    distances = L2().metric.pair_distances(known.rows, known.pairs)
    assert np.abs(distances[60:] - threshold).mean() < np.abs(distances[:60] - threshold).mean()


def test_suggestions_are_calibrated_on_people_held_out(faces: tuple[Rows, Ids]) -> None:
    known = Labels(*faces, np.random.default_rng(1))
    half_the_same(known, L2(), fit_nothing, 100)
    taught: list[Ids] = []

    def fit(data: TrainingSet) -> Embedder:
        taught.append(data.tasks[0].pairs)
        return L2()

    calibration = known.calibration(fit)
    inside = np.isin(known.pairs, taught[0]).all(axis=1)
    assert 0 < inside.sum() < 100
    distances = L2().metric.pair_distances(known.rows, known.pairs)
    assert calibration == Calibration.fit(distances[~inside & known.same], distances[~inside & ~known.same])


def fit_nothing(data: TrainingSet) -> Embedder:
    return L2()


def test_a_quick_run_has_fewer_tables(photos: Photos) -> None:
    _, past = made(photos, Scope(1, 1, True))
    assert {w.key.get("what", "fit") for w in past.computations()} == {"fit", "labels"}
    assert not any("+" in str(w.key["features"]) for w in past.computations())


def test_a_quick_run_states_that_no_options_were_chosen(photos: Photos) -> None:
    context, _ = made(photos, Scope(1, 1, True))
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        part = cnn_compression.make_compression_table(ClmlFits(context, FAST))
        assert part is not None
        for computation in part.computations:
            context.store.do(computation)
        table = part.table()
    assert "learned, 8, the first candidate" in [row.name for row in table.rows]
    assert "in a quick look none is chosen" in table.header
    assert "as chosen" not in str(table.rows) + table.header
