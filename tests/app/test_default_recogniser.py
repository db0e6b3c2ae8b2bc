"""A new collection is served by dlib's recogniser where it is installed, else by LBP, with a note."""

import logging
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from pydantic import ValidationError
from sqlalchemy import select

from app.config import Settings
from app.db.session import reading, writing
from app.db.tables import Deployment, ModelRecord
from app.resources import Resources, open_resources
from app.storage.model_cache import LBP_MODEL
from app.storage.recognisers.builtin_models import DLIB_MODEL
from app.storage.recognisers.default_recogniser import (
    DefaultRecogniser,
    choose_default,
    ensure_built_in,
    store_built_in,
)
from ml import images
from ml.descriptors import dlib_resnet
from ml.descriptors.dlib_resnet import REQUIREMENT, find_weights
from ml.errors import Corrupt, Unavailable
from ml.reference_calibrations import load_reference_calibration
from ml.synthetic_faces import draw, person
from tests.databases import migrate
from tests.ml.tiny_onnx import tiny_onnx
from tests.service import run_service


@pytest.fixture
def installed() -> None:
    try:
        find_weights()
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlib_resnet, "find_spec", lambda name: None)


def choose(name: str, **settings: object) -> DefaultRecogniser:
    return choose_default(Settings(default_recogniser=name, **settings))  # type: ignore[arg-type]


def test_auto_takes_the_strong_recogniser_where_it_is_installed(installed: None) -> None:
    assert Settings().default_recogniser == "auto"
    default = choose("auto")
    assert (default.name, default.model_id, default.notice, default.mend) == ("dlib_resnet", DLIB_MODEL, None, None)
    assert default.right_first == 0.97


def test_without_its_weights_lbp_serves_and_says_what_to_do(not_installed: None) -> None:
    default = choose("auto")
    assert (default.name, default.model_id, default.right_first) == ("lbp", LBP_MODEL, 0.4)
    assert default.mend is not None
    assert default.mend.endswith("-m pip install face_recognition_models==0.3.0")
    assert default.notice is not None
    assert "4 searches of 10" in default.notice
    assert "97 of 100" in default.notice
    assert default.mend in default.notice


def test_a_damaged_file_is_told_like_a_missing_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / dlib_resnet.WEIGHTS_FILE_NAME
    broken.write_bytes(b"half of it")
    monkeypatch.setattr(dlib_resnet, "find_weights", lambda: broken)
    notice = choose("auto").notice
    assert notice is not None
    assert "truncated or a different file" in notice


def test_lbp_that_was_chosen_is_no_fault() -> None:
    default = choose("lbp")
    assert (default.model_id, default.notice) == (LBP_MODEL, None)


def test_a_recogniser_that_was_named_must_be_there(not_installed: None) -> None:
    with pytest.raises(Unavailable, match="pip install"):
        choose("dlib_resnet")


def test_a_name_that_nobody_registered_stops_the_start() -> None:
    with pytest.raises(ValidationError, match="auto, lbp, dlib_resnet"):
        Settings(default_recogniser="arcface")


def test_a_registered_recogniser_may_be_the_default(tmp_path: Path) -> None:
    manifest = tiny_onnx(tmp_path)
    default = choose("theirs", descriptor_manifests={"theirs": manifest})
    assert default.name == "theirs"
    assert default.model_id.startswith("onnx-cosine-")
    assert default.right_first is None
    [descriptor] = default.model.recipe.built
    assert descriptor.version in str(default.model.recipe.descriptors[0].options["pin"])
    assert default.model.metric.is_euclidean
    manifest.write_text("{}")
    with pytest.raises(Unavailable, match="names theirs, which cannot be used"):
        choose("theirs", descriptor_manifests={"theirs": manifest})


def test_a_long_name_still_gives_a_models_id(tmp_path: Path) -> None:
    default = choose("n" * 100, descriptor_manifests={"n" * 100: tiny_onnx(tmp_path)})
    assert len(default.model_id) <= 64


def test_a_fallback_is_logged_at_the_start(
    not_installed: None, resources: Resources, caplog: pytest.LogCaptureFixture
) -> None:
    with writing(resources.database) as session, caplog.at_level(logging.WARNING):
        ensure_built_in(session, resources.models, choose("auto"))
    assert "pip install face_recognition_models==0.3.0" in caplog.text


@pytest.mark.usefixtures("installed")
def test_the_built_in_model_is_kept_once_with_its_calibration(resources: Resources) -> None:
    for _ in range(2):
        with writing(resources.database) as session:
            ensure_built_in(session, resources.models, choose("auto"))
    with reading(resources.database) as session:
        assert session.get(ModelRecord, DLIB_MODEL) is not None
    made = resources.models.get(DLIB_MODEL)
    assert made.calibrations["identity"] == load_reference_calibration("dlib_resnet")


def test_the_reference_calibration_orders_and_reaches_rare_errors() -> None:
    calibration = load_reference_calibration("dlib_resnet")
    distances = np.array([0.05, 0.2, 0.4, 0.8])
    assert (np.diff(calibration.similarity(distances)) < 0).all()
    assert calibration.similarity(distances)[0] > 99
    assert calibration.similarity(distances)[-1] < 5
    assert calibration.impostors.n > 10**7
    assert calibration.threshold(1e-5).enough
    one_in_a_million = calibration.threshold(1e-6)
    assert 0 < one_in_a_million.low < 1e-6 < one_in_a_million.high < 1e-5
    assert 0 < one_in_a_million.distance < calibration.threshold(1e-3).distance < 0.5


def test_a_calibration_that_is_not_there_is_corrupt() -> None:
    with pytest.raises(Corrupt, match=r"nobody\.json"):
        load_reference_calibration("nobody")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_new_collection_is_served_by_it_from_the_first_face_on(installed: None, settings: Settings) -> None:
    with run_service(settings.model_copy(update={"default_recogniser": "auto"})) as service:
        client = service.client
        recogniser = client.get("/info").json()["recogniser"]
        assert (recogniser["name"], recogniser["model"], recogniser["notice"]) == ("dlib_resnet", DLIB_MODEL, None)
        client.put("/v1/collections/staff").raise_for_status()
        for who in (0, 1):
            photo = {"file": ("a.png", images.encode_png(draw(person(who), 0)))}
            answer = client.post(
                "/v1/collections/staff/faces", files=photo, data={"subject": f"p{who}", "aligned": "true"}
            )
            assert answer.status_code == 201, answer.text
        query = {"file": ("q.png", images.encode_png(draw(person(0), 1)))}
        enrolled = {"X-Change-Number": answer.headers["X-Change-Number"]}
        search_answer = client.post(
            "/v1/collections/staff/search", files=query, params={"aligned": "true"}, headers=enrolled
        ).json()
        assert search_answer["model"] == DLIB_MODEL
        first, second = search_answer["faces"][0]["matches"]
        assert first["subject"]["id"] == "p0"
        assert first["similarity"] > second["similarity"]
        assert search_answer["calibrated"] is True
        with reading(service.resources.database) as session:
            assert session.get_one(Deployment, ("staff", "identity")).champion == DLIB_MODEL
        assert client.post(f"/v1/models/{DLIB_MODEL}:archive").status_code == 409


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_service_starts_without_it_and_says_so(not_installed: None, settings: Settings) -> None:
    with run_service(settings.model_copy(update={"default_recogniser": "auto"})) as service:
        recogniser = service.client.get("/info").json()["recogniser"]
        assert (recogniser["name"], recogniser["right_first"]) == ("lbp", 0.4)
        assert "97 of 100" in recogniser["notice"]
        assert recogniser["mend"].endswith("face_recognition_models==0.3.0")
        service.client.put("/v1/collections/staff").raise_for_status()
        deployment = service.client.get("/v1/collections/staff/deployments/identity").json()
        assert deployment["champion"] == LBP_MODEL


def test_everything_that_installs_names_the_same_version() -> None:
    root = Path(__file__).resolve().parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["recogniser"] == [REQUIREMENT]
    assert f"ARG RECOGNISER={REQUIREMENT}\n" in (root / "Dockerfile").read_text()
    makefile = (root / "Makefile").read_text()
    assert "'.[recogniser]'" in makefile
    assert ".[cpu,recogniser" not in makefile, "an install that fails must not stop the start"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_when_the_weights_go_away_what_is_enrolled_is_still_searched(
    installed: None, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    auto = settings.model_copy(update={"default_recogniser": "auto"})
    photo = {"file": ("a.png", images.encode_png(draw(person(0), 0)))}
    with run_service(auto) as service:
        service.client.put("/v1/collections/staff").raise_for_status()
        enrolled = service.client.post("/v1/collections/staff/faces", files=photo, data={"aligned": "true"}).json()
    monkeypatch.setattr(dlib_resnet, "find_spec", lambda name: None)
    dlib_resnet._session.cache_clear()
    with run_service(auto) as service:
        client = service.client
        wait_until_ready(client)
        face = enrolled["face_records"][0]["face_id"]
        assert client.post(f"/v1/collections/staff/faces/{face}/search").json()["model"] == DLIB_MODEL
        refused = client.post("/v1/collections/staff/search", files=photo, params={"aligned": "true"})
        assert (refused.status_code, refused.json()["code"]) == (409, "NotInstalled")
        assert "pip install" in refused.json()["detail"]
        assert client.put("/v1/collections/other").status_code == 201


def wait_until_ready(client: httpx.Client) -> None:
    until = time.monotonic() + 20
    while client.get("/readyz").status_code != 200:
        assert time.monotonic() < until, client.get("/readyz").text
        time.sleep(0.05)


def test_processes_that_start_at_once_on_a_new_database_store_the_models_once(settings: Settings) -> None:
    settings.home.mkdir(parents=True, exist_ok=True)
    migrate(settings)
    with open_resources(settings) as resources:
        started = threading.Barrier(4)

        def start(_: int) -> None:
            started.wait(10)
            store_built_in(resources.database, resources.models, resources.default_recogniser)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(start, range(4)))
        with reading(resources.database) as session:
            stored = list(session.scalars(select(ModelRecord.id)))
    assert len(stored) == len(set(stored)) >= 1
