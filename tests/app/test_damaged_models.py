"""Damaged and altered models: signatures, what goes on without them, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select
from typer.testing import CliRunner

from app.cli.main import app as cli
from app.config import Settings
from app.db.session import reading, writing
from app.db.tables import AuditEntry, Embedding
from app.resources import Resources, open_resources
from app.serving import follower
from app.serving.engine import Engine
from app.storage import model_cache
from app.storage.installation_key import KEY_FILE
from app.storage.model_cache import LBP_MODEL, ensure_lbp_model
from app.storage.model_signatures import FIRST_START_FILE, UNFINISHED_FILE
from ml.errors import Corrupt
from ml.files import hash_file
from ml.model import MANIFEST, SIGNATURE
from tests.app.test_faces import picture
from tests.rows import GalleryWriter, make_model, people
from tests.service import Service

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
CHAMPION, PREVIOUS = make_model("m-champion"), make_model("m-previous", seed=1)
DEPLOYMENT = "/v1/collections/staff/deployments/identity"


def truncate_weights(resources: Resources, model: str) -> Path:
    path = resources.models.folder / model / "embedder.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    return path


def rehash(folder: Path) -> None:
    """Alter a model, and state the new hashes in its manifest, as somebody with access to the disk can."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["facts"]["made"] = "by somebody else"
    manifest["files"] = {name: hash_file(folder / name) for name in manifest["files"]}
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.fixture
def staff(service: Service, monkeypatch: pytest.MonkeyPatch) -> httpx.Client:
    """A client of a service with two models that serve `staff`, which has twenty faces.

    Damage is noticed at once, and every use of a model reads its files, as the first one after a restart does.
    """
    monkeypatch.setattr(model_cache, "DAMAGE_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(model_cache, "MAX_CACHED_MODELS", 0)
    gallery = GalleryWriter(service.resources).make(CHAMPION, previous=PREVIOUS)
    rows, subjects = people(10, 2)
    gallery.add({CHAMPION.id: rows, PREVIOUS.id: rows}, subjects)
    service.wait_for_indexes()
    return service.client


def enrol(client: httpx.Client, seed: int) -> httpx.Response:
    return client.post(
        "/v1/collections/staff/faces", files={"file": picture(seed)}, data={"aligned": True, "subject": f"s{seed}"}
    )


def count_embeddings(resources: Resources, model: str) -> int:
    with reading(resources.database) as session:
        return session.scalar(select(func.count()).where(Embedding.model_id == model)) or 0


def wait_until_ready(client: httpx.Client, status: int) -> dict[str, Any]:
    for _ in range(300):
        answer = client.get("/readyz")
        if answer.status_code == status:
            return dict(answer.json())
    raise AssertionError(answer.text)


@on_sqlite
def test_enrolment_goes_on_without_a_damaged_previous_model(staff: httpx.Client, service: Service) -> None:
    path = service.resources.models.folder / PREVIOUS.id / "embedder.safetensors"
    whole = path.read_bytes()
    truncate_weights(service.resources, PREVIOUS.id)
    answer = enrol(staff, 1)
    assert answer.status_code == 201, answer.text
    assert wait_until_ready(staff, 200)["reasons"] == []
    assert (count_embeddings(service.resources, CHAMPION.id), count_embeddings(service.resources, PREVIOUS.id)) == (
        21,
        20,
    )
    [damaged] = staff.get(DEPLOYMENT).json()["damaged"]
    assert (damaged["model"], damaged["pointers"]) == (PREVIOUS.id, ["previous"])
    assert "was altered: embedder.safetensors" in damaged["reason"]
    metrics = staff.get("/metrics").text
    assert 'likeness_damaged_models{collection="staff",pointer="previous",task="identity"} 1.0' in metrics
    path.write_bytes(whole)
    assert staff.get(DEPLOYMENT).json()["damaged"] == []
    service.wait(staff.post(f"{DEPLOYMENT}:rollback"))
    assert staff.get(DEPLOYMENT).json()["champion"] == PREVIOUS.id
    assert count_embeddings(service.resources, PREVIOUS.id) == 21


@on_sqlite
@pytest.mark.parametrize("with_new_face", [False, True])
def test_a_pointer_is_not_moved_to_a_damaged_model(staff: httpx.Client, service: Service, with_new_face: bool) -> None:
    truncate_weights(service.resources, PREVIOUS.id)
    if with_new_face:
        assert enrol(staff, 1).status_code == 201
    answer = staff.post(f"{DEPLOYMENT}:rollback")
    assert (answer.status_code, answer.json()["code"]) == (409, "ModelDamaged")
    assert "Restore its folder from a backup" in answer.json()["detail"]
    if not with_new_face:
        job = service.wait(staff.put(f"{DEPLOYMENT}/challenger", json={"model": PREVIOUS.id}))  # measures it first
        assert (job["state"], job["problem"]["code"]) == ("failed", "ModelUnavailable")
    shown = staff.get(DEPLOYMENT).json()
    assert (shown["champion"], shown["challenger"], shown["version"]) == (CHAMPION.id, None, 1)


@on_sqlite
def test_a_damaged_champion_makes_the_service_unready_with_the_reason(staff: httpx.Client, service: Service) -> None:
    path = truncate_weights(service.resources, CHAMPION.id)
    reason = str(wait_until_ready(staff, 503)["reasons"])
    assert "the stored files of the champion are damaged: restore them from a backup" in reason
    assert "staff" not in reason
    answer = enrol(staff, 1)
    assert (answer.status_code, answer.json()["code"]) == (503, "ModelUnavailable")
    shutil.rmtree(path.parent)
    assert "damaged" in str(wait_until_ready(staff, 503)["reasons"])


def test_a_damaged_champion_is_logged_once_until_its_damage_changes(
    resources: Resources, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(follower, "RETRY_SECONDS", 0.0)
    for collection in ("one", "two"):
        rows, subjects = people(2, 1)
        GalleryWriter(resources, collection).make(CHAMPION).add({CHAMPION.id: rows}, subjects)
    path = truncate_weights(resources, CHAMPION.id)
    resources.models._loaded.clear()
    engine = Engine(resources)

    def list_failures(steps: int) -> list[tuple[str, bool]]:
        caplog.clear()
        for _ in range(steps):
            engine.follower.step()
            engine.follower.sync.tasks.finish(20)
        records = [record for record in caplog.records if "deployment_failed" in record.getMessage()]
        return [(record.getMessage().partition("error=")[2], record.exc_info is not None) for record in records]

    altered = f"Corrupt: the model {CHAMPION.id} was altered: {path.name}"
    assert list_failures(6) == [(altered, True), (altered, False)]
    assert list_failures(4) == []
    with pytest.raises(Corrupt, match=r"cannot be loaded: .* was altered.*Restore its folder"), engine.use("one"):
        pass
    path.unlink()
    [first, second] = list_failures(4)
    assert first[0] == second[0] != altered
    assert (first[1], second[1]) == (True, False)


@on_sqlite
def test_a_model_whose_manifest_was_rewritten_is_not_loaded(resources: Resources) -> None:
    resources.models.save(CHAMPION)
    folder = resources.models.folder / CHAMPION.id
    assert resources.models.get(CHAMPION.id).id == CHAMPION.id
    resources.models._loaded.clear()
    rehash(folder)
    with pytest.raises(Corrupt, match="is not signed by this installation"):
        resources.models.get(CHAMPION.id)
    (folder / SIGNATURE).unlink()
    with pytest.raises(Corrupt, match="is not signed by this installation"):
        resources.models.get(CHAMPION.id)


@on_sqlite
def test_a_model_under_the_name_of_another_is_not_loaded(resources: Resources) -> None:
    for model in (CHAMPION, PREVIOUS):
        resources.models.save(model)
    folder = resources.models.folder
    shutil.rmtree(folder / CHAMPION.id)
    shutil.copytree(folder / PREVIOUS.id, folder / CHAMPION.id)
    with pytest.raises(Corrupt, match="holds the model m-previous"):
        resources.models.get(CHAMPION.id)
    assert "holds the model m-previous" in str(resources.models.find_damage(CHAMPION.id))


def reopen(settings: Settings, model: str) -> str | None:
    with open_resources(settings) as opened:
        return opened.models.find_damage(model)


@on_sqlite
def test_models_of_an_earlier_version_are_signed_at_the_first_start_and_only_then(
    resources: Resources, settings: Settings
) -> None:
    for model in (CHAMPION, PREVIOUS):
        resources.models.save(model)
    folder = resources.models.folder
    remove_signatures(resources)
    (settings.home / FIRST_START_FILE).unlink()
    truncate_weights(resources, PREVIOUS.id)
    assert reopen(settings, CHAMPION.id) is None
    assert not (folder / PREVIOUS.id / SIGNATURE).exists()
    rehash(folder / CHAMPION.id)
    assert "is not signed" in str(reopen(settings, CHAMPION.id))


@on_sqlite
def test_altered_models_are_not_signed_at_a_start_because_nothing_is_signed(
    resources: Resources, settings: Settings
) -> None:
    """Who can alter models can remove all signatures too: the next start took them for those of an earlier version."""
    resources.models.save(CHAMPION)
    rehash(resources.models.folder / CHAMPION.id)
    remove_signatures(resources)
    assert "is not signed" in str(reopen(settings, CHAMPION.id))
    (settings.home / UNFINISHED_FILE).touch()
    assert "is not signed" in str(reopen(settings, CHAMPION.id))
    assert reopen(settings, LBP_MODEL) is not None


def remove_signatures(resources: Resources) -> None:
    for path in resources.models.folder.glob(f"*/{SIGNATURE}"):
        path.unlink()


@on_sqlite
def test_an_interrupted_first_start_is_finished_by_the_next(
    resources: Resources, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model in (CHAMPION, PREVIOUS):
        resources.models.save(model)
    remove_signatures(resources)
    (settings.home / FIRST_START_FILE).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            reopen(settings, CHAMPION.id)
    assert (settings.home / UNFINISHED_FILE).exists()
    (resources.models.folder / LBP_MODEL / SIGNATURE).write_text("cut short")
    assert reopen(settings, CHAMPION.id) is None
    assert reopen(settings, LBP_MODEL) is None
    assert reopen(settings, PREVIOUS.id) is None
    assert not (settings.home / UNFINISHED_FILE).exists()


@on_sqlite
def test_models_signed_with_a_lost_key_are_signed_anew_by_the_command_alone(
    resources: Resources, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    resources.models.save(CHAMPION)
    (settings.home / KEY_FILE).unlink()
    assert "is not signed" in str(reopen(settings, CHAMPION.id))
    monkeypatch.setenv("LIKENESS_HOME", str(settings.home))
    result = CliRunner().invoke(cli, ["models", "sign"])
    assert result.exit_code == 0, result.output
    assert "signed 2 models" in result.output
    assert reopen(settings, CHAMPION.id) is None
    with reading(resources.database) as session:
        assert session.scalars(select(AuditEntry.action)).all() == ["model.sign"]


@on_sqlite
def test_two_processes_may_set_the_same_damaged_model_aside(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    resources.models.save(CHAMPION)
    folder = truncate_weights(resources, CHAMPION.id).parent
    find_damage = resources.models.find_damage

    def find_and_set_aside(model: str) -> str | None:
        damage = find_damage(model)
        folder.rename(folder.with_name(".damaged-by-another"))
        return damage

    with monkeypatch.context() as patched:
        patched.setattr(resources.models, "find_damage", find_and_set_aside)
        resources.models.save(CHAMPION)
    assert resources.models.find_damage(CHAMPION.id) is None


@on_sqlite
def test_a_damaged_built_in_model_is_set_aside_and_written_again(resources: Resources) -> None:
    folder = resources.models.folder
    rehash(folder / LBP_MODEL)
    resources.models._damage.clear()
    with writing(resources.database) as session:
        ensure_lbp_model(session, resources.models)
    assert resources.models.find_damage(LBP_MODEL) is None
    assert [path.name.startswith(f".damaged-{LBP_MODEL}-") for path in folder.glob(".damaged*")] == [True]
