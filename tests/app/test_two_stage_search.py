"""A model that names an index with two stages is searched by it: measured, chosen from, saved, and kept current."""

import errno
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.db.session import reading, writing
from app.db.tables import Deployment
from app.deployments.schemas import DeploymentOut
from app.errors import Busy
from app.resources import Resources
from app.search.criteria import choose_effort
from app.search.params import SearchParams
from app.serving import deployment_sync, index_builder, index_snapshots
from app.serving.calibration import gallery_calibration
from app.serving.deployments import SearchEffort, ServedModel
from app.serving.engine import Engine, open_engine
from app.serving.index_builder import IndexKey
from app.serving.index_snapshots import SnapshotStore
from app.serving.loaded_index import LoadedIndex
from ml.distances.averaged import Averaged
from ml.embedders.l2 import L2
from ml.indexes.two_stage import TwoStageIndex
from ml.model import Model, Recipe, load_model, save_model
from ml.types import Spec
from tests.app.test_engine import indexed_faces, until
from tests.databases import delete_collections
from tests.rows import GalleryWriter, make_model

CHOSEN = Spec("two_stage", {"bits": 2, "rows": "file", "target_recall": 0.95})
MODEL = replace(make_model("m-staged"), index=CHOSEN)
FACES = 10_200


@pytest.fixture(scope="module")
def gallery(lasting: Resources) -> Iterator[GalleryWriter]:
    """So many strangers that the index has cells, and a few people."""
    made = GalleryWriter(lasting).make(MODEL)
    draw = np.random.default_rng(0)
    rows = (draw.normal(size=(500, 8))[draw.integers(0, 500, FACES)] + 0.2 * draw.normal(size=(FACES, 8))).astype("f4")
    made.add({MODEL.id: rows}, [None] * FACES, role="distractor")
    measured = gallery_calibration.measure_gallery(lasting, "staff", "identity", MODEL)
    with writing(lasting.database) as session:
        deployment = session.get_one(Deployment, ("staff", "identity"))
        deployment.measurements = {MODEL.id: measured}
    yield made
    delete_collections(lasting.database)
    for file in lasting.indexes.iterdir():
        file.unlink()


def test_the_measurement_has_the_candidates_and_their_curve(gallery: GalleryWriter) -> None:
    with reading(gallery.resources.database) as session:
        out = DeploymentOut.of(session.get_one(Deployment, ("staff", "identity")), [])
    assert (out.index, out.cells) == ("two_stage", 128)
    reached = [point["candidates"] for point in out.candidate_curve if point["recall"] >= 0.95]
    assert out.candidates == (reached or [out.candidate_curve[-1]["candidates"]])[0]
    assert [point.get("candidates") for point in out.curve] == [out.candidates] * 7 + [None]
    assert out.curve[-1]["recall"] == 1


def test_a_search_ranks_the_measured_candidates_unless_it_states_others(gallery: GalleryWriter) -> None:
    with open_engine(gallery.resources) as engine:
        until(lambda: is_current(engine, gallery), seconds=60)
        with engine.use("staff") as served:
            assert isinstance(served.index, TwoStageIndex)
            measured = served.scores.candidates
            assert measured is not None
            assert choose(served, {}) == SearchEffort(None, measured)
            assert choose(served, {"m": 3}) == SearchEffort(3, measured)
            assert choose(served, {"candidates": 77}) == SearchEffort(None, 77)
            assert choose(served, {"m": 128}) == SearchEffort(128, None)
            assert choose(served, {"target_recall": 1}) == SearchEffort(128, None)
            fast = choose(served, {"target_recall": 0.01})
            assert fast == SearchEffort(1, measured)
            rows = served.index.rows(np.array(gallery.pks[:20]))
            assert served.search(rows, 1, SearchEffort(8, 40)).ids[:, 0].tolist() == gallery.pks[:20]
            assert served.search(rows, 1, SearchEffort(128)).ids[:, 0].tolist() == gallery.pks[:20]


def is_current(engine: Engine, gallery: GalleryWriter) -> bool:
    """Whether the engine holds every face. A busy machine may take longer to build an index than a request waits."""
    with suppress(Busy):
        return indexed_faces(engine) == set(gallery.pks)
    return False


def choose(served: ServedModel, params: dict[str, float]) -> SearchEffort:
    return choose_effort(served, SearchParams.model_validate(params))


def test_its_snapshot_is_loaded_and_a_shortened_one_is_built_again(gallery: GalleryWriter) -> None:
    resources = gallery.resources
    with open_engine(resources) as engine:
        until(lambda: is_current(engine, gallery), seconds=60)
        key = engine.registry.all()[0].champion.key
    snapshots = SnapshotStore(resources.indexes)
    loaded = snapshots.load(key, "cpu")
    assert loaded is not None
    assert isinstance(loaded.index, TwoStageIndex)
    assert loaded.index.options.rows == "file"
    [file] = resources.indexes.glob("*.index")
    file.write_bytes(file.read_bytes()[:-100])
    assert snapshots.load(key, "cpu") is None
    with open_engine(resources) as engine:
        until(lambda: is_current(engine, gallery), seconds=60)
        gallery.remove(gallery.pks[:50])
        until(lambda: is_current(engine, gallery))


def test_an_index_whose_snapshot_cannot_be_deleted_goes_on_without_erased_faces(
    gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An erasure waits for the file; a process that serves does not."""

    def refuse(paths: Iterable[Path]) -> None:
        for path in paths:
            raise OSError(errno.EROFS, "read-only", path)

    resources = gallery.resources
    with open_engine(resources) as engine:
        until(lambda: is_current(engine, gallery), seconds=60)
    with open_engine(resources) as engine:
        until(lambda: is_current(engine, gallery), seconds=60)
        monkeypatch.setattr(index_snapshots, "_unlink", refuse)
        gallery.remove(gallery.pks[:50])
        until(lambda: is_current(engine, gallery))
        assert "index.snapshot_not_deleted" in caplog.text
        with pytest.raises(OSError, match="read-only"):
            engine.follower.snapshots.delete_erased("staff", -1.0, 0)
        monkeypatch.undo()


def test_faces_that_are_gone_count_across_restarts_until_an_index_is_built_anew(tmp_path: Path) -> None:
    key, store = IndexKey("staff", "identity", MODEL.id, 0.0), SnapshotStore(tmp_path)
    index, ids = TwoStageIndex(8, p=16), np.arange(5_000)
    index.add(ids, np.random.default_rng(0).normal(size=(5_000, 8)).astype("f4"))
    index.finish_build()
    first = LoadedIndex(key, MODEL, index, 0)
    first.apply(ids[:450], (), 1)
    assert not first.has_outgrown_cells()
    store.save(key, first.index, 1, "")
    saved = store.load(key, "cpu")
    assert saved is not None
    again = LoadedIndex(key, MODEL, saved.index, saved.change)
    again.apply(ids[450:550], (), 2)
    assert again.has_outgrown_cells()


def test_an_import_of_vectors_does_not_hold_back_an_index_that_many_faces_have_left(
    gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment_sync, "is_importing_vectors", lambda *_: True)
    with open_engine(gallery.resources) as engine:
        until(lambda: is_current(engine, gallery), seconds=60)
        former = engine.registry.all()[0].champion
        gallery.remove(gallery.pks[: len(gallery.pks) // 10 + 1])
        until(lambda: engine.registry.all()[0].champion is not former, seconds=60)
        assert not engine.registry.all()[0].champion.has_outgrown_cells()


def test_a_model_keeps_its_index_on_disk(gallery: GalleryWriter) -> None:
    folder = gallery.resources.settings.home / "kept"
    folder.mkdir()
    model = Model("kept", Recipe(), "l2", L2(), index=CHOSEN)
    assert load_model(save_model(model, folder)).index == CHOSEN
    assert "index" not in replace(model, index=None).manifest()


def test_an_index_that_cannot_search_by_the_metric_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    class Averages(L2):
        metric = Averaged(blocks=(8,), shares=(1.0,), biases=(0.0,))

    model = Model("averages", Recipe(), "l2", Averages(), index=CHOSEN)
    assert index_builder.choose_index(model) is None
    assert "index.unsuitable model=averages" in caplog.text
    assert index_builder.choose_index(MODEL) == CHOSEN
