"""A snapshot has the files that its models need, and a restored service finds them in its own home."""

from pathlib import Path

import numpy as np
import pytest

from app.db.session import reading
from app.errors import Invalid
from app.learning.plan_resolution import make_plan
from app.learning.training_request import TrainingRequest
from app.recognisers.service import list_recognisers_in_use
from app.resources import Resources, open_resources
from app.snapshots import writer
from app.snapshots.files import RECOGNISERS, check_path, list_folder
from app.snapshots.reader import check_snapshot, open_snapshot
from app.storage.recognisers.component_files import VOCABULARIES
from ml.descriptors.common.vocabulary import Vocabulary
from ml.embedders.cosine import Cosine
from ml.model import Model, Recipe
from ml.types import Spec
from tests.app.test_snapshots import bring_back, empty_service, quiet, restore, take
from tests.ml.tiny_onnx import tiny_onnx
from tests.rows import GalleryWriter

AXES, COMPONENTS = 3, 2


@pytest.fixture
def database_url() -> str:
    """SQLite: which files a model needs does not depend on the database."""
    return ""


def write_vocabulary(folder: Path, seed: int = 0) -> Path:
    """Write a small vocabulary of random numbers, and return its path."""
    draw = np.random.default_rng(seed)
    shapes = ((AXES, 128), (128,), (COMPONENTS, AXES + 2), (COMPONENTS, AXES + 2), (COMPONENTS,))
    return Vocabulary(*(draw.uniform(0.1, 1, shape).astype(np.float32) for shape in shapes)).write(folder, {})


def make_fisher_model(vocabulary: Path, name: str = "m-fisher") -> Model:
    options = {"vocabulary": str(vocabulary), "pin": vocabulary.stem, "stride": 40}
    return Model(name, Recipe((Spec("fisher", options),)), "cosine", Cosine(), provenance={"made": "for a test"})


def list_vocabulary_files(folder: Path) -> list[str]:
    with open_snapshot(folder) as opened:
        return [path for path in opened.list_files() if path.startswith(VOCABULARIES)]


@pytest.mark.parametrize("collection", [None, "staff"])
def test_a_restored_service_describes_by_the_vocabulary_and_trains_with_it(
    resources: Resources, tmp_path: Path, collection: str | None
) -> None:
    home = resources.settings.home
    model = make_fisher_model(write_vocabulary(home / VOCABULARIES))
    crops = {"grey": np.random.default_rng(1).integers(0, 256, (2, 170, 100), np.uint8)}
    rows, keys = model.describe(crops), model.recipe.keys
    GalleryWriter(resources).make(model)
    GalleryWriter(resources, "others").make(make_fisher_model(write_vocabulary(home / VOCABULARIES, 1), "m-other"))
    take(resources, tmp_path / "copy")
    check_snapshot(tmp_path / "copy", quiet)
    (home / VOCABULARIES).rename(tmp_path / "gone")
    settings = empty_service(tmp_path / "second")
    if collection is None:
        restore(settings, tmp_path / "copy")
    with open_resources(settings) as second:
        if collection is not None:
            bring_back(second, tmp_path / "copy", collection)
            assert len(list((settings.home / VOCABULARIES).iterdir())) == 1, "not that of the other collection"
        restored = second.models.get(model.id)
        np.testing.assert_array_equal(restored.describe(crops), rows)
        assert restored.recipe.keys == keys, "descriptors that were kept beside the crops are used"
        requests = [TrainingRequest(collection="staff", method="wpca"), TrainingRequest(collection="staff")]
        requests.append(TrainingRequest(collection="staff", method="ldml", start_from=model.id))
        with reading(second.database) as session:
            assert {make_plan(session, settings, request).recipe.keys for request in requests} == {keys}


def test_a_restored_service_trains_with_an_added_recogniser(resources: Resources, tmp_path: Path) -> None:
    folder = resources.settings.home / RECOGNISERS / "theirs"
    folder.mkdir(parents=True)
    manifest = tiny_onnx(folder).rename(folder / "manifest.json")
    recipe = Recipe((Spec("onnx", {"manifest": str(manifest)}),))
    model = Model("m-onnx", recipe, "cosine", Cosine(), provenance={"made": "for a test"})
    keys = model.recipe.keys
    GalleryWriter(resources).make(model)
    take(resources, tmp_path / "copy")
    folder.rename(tmp_path / "gone")
    settings = empty_service(tmp_path / "second")
    restore(settings, tmp_path / "copy")
    with open_resources(settings) as second, reading(second.database) as session:
        plan = make_plan(session, settings, TrainingRequest(collection="staff", method="wpca"))
        assert plan.recipe.keys == keys
        [shown] = [one for one in list_recognisers_in_use(session, second).recognisers if one.name == "theirs"]
        assert shown.serves == ["staff"]


def test_a_vocabulary_that_another_home_holds_is_copied_and_an_altered_one_is_not(
    resources: Resources, tmp_path: Path
) -> None:
    """An earlier version has restored models without their vocabularies, which were read where they had been."""
    path = write_vocabulary(tmp_path / "first" / VOCABULARIES)
    GalleryWriter(resources).make(make_fisher_model(path))
    take(resources, tmp_path / "copy")
    assert list_vocabulary_files(tmp_path / "copy") == [f"{VOCABULARIES}/{path.name}"]
    path.write_bytes(b"altered")
    take(resources, tmp_path / "second")
    assert list_vocabulary_files(tmp_path / "second") == []


@pytest.mark.parametrize("name", ["fisher.json", f"{'0' * 64}.json", f"a/{'0' * 64}.safetensors", "../x.safetensors"])
def test_nothing_but_vocabularies_is_restored_among_them(name: str) -> None:
    check_path(f"{VOCABULARIES}/{'0' * 64}.safetensors")
    with pytest.raises(Invalid, match="does not belong there"):
        check_path(f"{VOCABULARIES}/{name}")


def test_a_recogniser_that_is_added_or_removed_meanwhile_does_not_fail_the_snapshot(
    resources: Resources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is added, its files lie in a folder that is renamed at the end."""
    folder = resources.settings.home / RECOGNISERS
    for name in ("added", "kept", "removed"):
        (folder / f".staged-{name}").mkdir(parents=True)
        (folder / f".staged-{name}" / "network.onnx").write_text(name)
    for name in ("kept", "removed"):
        (folder / f".staged-{name}").rename(folder / name)

    def list_before_change(listed: Path) -> list[Path]:
        paths = list_folder(listed)
        for name, new in ((".staged-added", "added"), ("removed", ".gone")):
            if listed == folder:
                (folder / name).rename(folder / new)
        return paths

    monkeypatch.setattr(writer, "list_folder", list_before_change)
    take(resources, tmp_path / "copy")
    with open_snapshot(tmp_path / "copy") as opened:
        assert [path for path in opened.list_files() if path.startswith(RECOGNISERS)] == [
            f"{RECOGNISERS}/kept/network.onnx"
        ]
    check_snapshot(tmp_path / "copy", quiet)
