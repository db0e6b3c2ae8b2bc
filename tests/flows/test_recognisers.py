"""Recognisers end to end: add an ONNX file while the service runs, switch a collection to it, and roll back."""

import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.cli.main import app
from app.config import Settings
from app.db.session import writing
from app.db.tables import ModelRecord
from app.storage.model_cache import LBP_MODEL
from tests.flows.continuous_search import ContinuousSearch
from tests.flows.test_training import STRONG, archive, upload
from tests.gallery import crops
from tests.ml.learned_onnx import learned_onnx
from tests.service import Service, run_service

PEOPLE, SHOTS = 12, 3
INSISTED = {"override": True, "reason": "while an import runs nothing can be measured yet"}
DEPLOYMENT = "/v1/collections/c/deployments/identity"
USE = "/v1/collections/c:use-recogniser"
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def likeness(service: Service, *words: str | Path) -> Result:
    """Run a command as an operator types it, beside the running service."""
    env: dict[str, str | None] = {name: None for name in os.environ if name.startswith("LIKENESS_")}
    env |= {
        "LIKENESS_HOME": str(service.resources.settings.home),
        "LIKENESS_URL": service.url,
        "LIKENESS_KEY": str(service.client.headers["Authorization"]).removeprefix("Bearer "),
    }
    return CliRunner().invoke(app, [str(word) for word in words], env=env)


def add_recogniser(service: Service, folder: Path, name: str = "theirs", flip: float = 1.0) -> None:
    result = likeness(service, "recognisers", "add", learned_onnx(folder / f"{name}.onnx", flip=flip), "--yes")
    assert result.exit_code == 0, result.output


def request_switch(service: Service, name: str = "theirs", **more: Any) -> Any:
    return service.client.post(USE, json={"recogniser": name, **more})


def switch_recogniser(service: Service, name: str = "theirs") -> str:
    """The id of the model that serves once the recogniser is used."""
    job = service.wait(request_switch(service, name))
    assert job["state"] == "succeeded", job["problem"]
    return str(job["result"]["model"])


def search(service: Service, who: int = 3) -> dict[str, Any]:
    answer = service.client.post(
        "/v1/collections/c/search?aligned=true&limit=5", files={"file": crops(who, who * 1000 + 7, STRONG)["grey"]}
    )
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def list_faces(service: Service) -> list[tuple[str, str | None]]:
    shown = service.client.get("/v1/collections/c/faces?limit=1000").json()["faces"]
    return [(f["face_id"], (f["subject"] or {}).get("id")) for f in shown]


def read_champion(service: Service) -> str:
    return str(service.client.get(DEPLOYMENT).json()["champion"])


def list_served_collections(service: Service) -> dict[str, list[str]]:
    return {r["name"]: r["serves"] for r in service.client.get("/v1/recognisers").json()["recognisers"] if r["serves"]}


def test_two_commands_put_an_onnx_file_into_service_and_one_rolls_back(service: Service, tmp_path: Path) -> None:
    upload(service, "c", range(PEOPLE), SHOTS)
    before, first = list_faces(service), search(service)
    same = service.client.post(
        "/v1/labels", json={"labels": [{"face_a": before[0][0], "face_b": before[1][0], "same": True}]}
    )
    assert same.json()["accepted"] == 1

    model = learned_onnx(tmp_path / "theirs.onnx", batch=1)
    result = likeness(service, "recognisers", "add", model, "--yes")
    assert result.exit_code == 0, result.output
    result = likeness(service, "recognisers", "use", "theirs", "--collection", "c")
    assert result.exit_code == 0, result.output
    assert "c is searched by theirs" in result.output

    served = read_champion(service)
    assert served.startswith("onnx-cosine-")
    assert list_faces(service) == before, "ids and names stay"
    assert search(service)["model"] == served
    assert search(service) != first
    assert list_served_collections(service) == {"theirs": ["c"]}
    listed = likeness(service, "recognisers", "list")
    assert "theirs: installed; serves c" in listed.output
    shown = service.client.get(f"/v1/models/{served}").json()
    assert (shown["method"], shown["manifest"]["facts"]["recogniser"]) == ("cosine", "theirs")
    photo = {"file": crops(50, 1, STRONG)["grey"]}
    new = service.client.post("/v1/collections/c/faces", files=photo, data={"aligned": True, "subject": "new"})
    assert new.status_code == 201

    result = likeness(service, "recognisers", "rollback", "--collection", "c")
    assert result.exit_code == 0, result.output
    assert read_champion(service) == LBP_MODEL
    assert search(service)["model"] == LBP_MODEL
    assert list_served_collections(service) == {"lbp": ["c"]}
    again = request_switch(service)
    assert (again.status_code, again.json()) == (200, {"collection": "c", "recogniser": "theirs", "model": served})
    assert read_champion(service) == served
    assert request_switch(service).status_code == 200, "it serves already"


@on_sqlite
def test_add_with_a_collection_also_switches_to_the_recogniser(service: Service, tmp_path: Path) -> None:
    upload(service, "c", range(4), 2)
    model = learned_onnx(tmp_path / "theirs.onnx")
    result = likeness(service, "recognisers", "add", model, "--yes", "--collection", "c")
    assert result.exit_code == 0, result.output
    assert list_served_collections(service) == {"theirs": ["c"]}


@on_sqlite
def test_searches_succeed_during_a_switch_to_a_better_recogniser(service: Service, tmp_path: Path) -> None:
    upload(service, "c", range(PEOPLE), SHOTS)
    add_recogniser(service, tmp_path)

    def count_correct_answers() -> int:
        nearest = (search(service, who)["faces"][0]["matches"][0]["subject"]["id"] for who in range(PEOPLE))
        return sum(name == f"p{who}" for who, name in enumerate(nearest))

    before = count_correct_answers()
    with ContinuousSearch(service.client, crops(5, 5001, STRONG)["grey"]) as searcher:
        switch_recogniser(service)
        after = count_correct_answers()
    assert not searcher.failures
    assert after > before


@on_sqlite
def test_a_switch_to_an_unusable_recogniser_is_refused_at_once(service: Service, tmp_path: Path) -> None:
    upload(service, "c", range(2), 1)
    unknown = request_switch(service, "nobody")
    assert (unknown.status_code, unknown.json()["code"]) == (422, "UnknownComponent")
    assert "dlib_resnet, sface, lbp" in unknown.json()["detail"]
    missing = request_switch(service, "sface")
    assert (missing.status_code, missing.json()["code"]) == (409, "NotInstalled")
    assert "likeness recognisers pull sface" in missing.json()["detail"]
    nowhere = service.client.post("/v1/collections/nowhere:use-recogniser", json={"recogniser": "lbp"})
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "ResourceNotFound")
    add_recogniser(service, tmp_path)
    wordless = request_switch(service, override=True)
    assert (wordless.status_code, wordless.json()["code"]) == (422, "ReasonRequired")
    for role in ("reader", "operator"):
        answer = service.client.post(USE, json={"recogniser": "lbp"}, headers=service.key(role))
        assert (answer.status_code, answer.json()["code"]) == (403, "AccessDenied")
    path = service.resources.settings.home / "recognisers" / "theirs" / "theirs.onnx"
    path.write_bytes(path.read_bytes()[:-100])
    altered = request_switch(service)
    assert (altered.status_code, altered.json()["code"]) == (409, "NotInstalled")
    assert "SHA-256" in altered.json()["detail"]
    assert read_champion(service) == LBP_MODEL


@on_sqlite
def test_a_switch_is_refused_while_crops_are_missing(service: Service, tmp_path: Path) -> None:
    upload(service, "c", range(3), 2)
    add_recogniser(service, tmp_path)
    crop = next(name for name in service.resources.blobs.names("c") if name.endswith(".colour.png"))
    service.resources.blobs.remove("c", [crop])
    answer = request_switch(service)
    assert (answer.status_code, answer.json()["code"]) == (409, "CropMissing")
    assert "1 of 6 faces of 'c' have no stored crop of the kind 'colour', which theirs describes" in answer.text
    assert (answer.json()["missing"], answer.json()["kind"]) == (1, "colour")
    assert switch_recogniser(service, "lbp") == LBP_MODEL


@on_sqlite
def test_a_bound_key_sees_only_its_collections_in_the_list(service: Service) -> None:
    for name in ("c", "d"):
        service.client.put(f"/v1/collections/{name}")
    assert list_served_collections(service) == {"lbp": ["c", "d"]}
    bound = service.client.get("/v1/recognisers", headers=service.key("reader", "d")).json()["recognisers"]
    assert {r["name"]: r["serves"] for r in bound if r["serves"]} == {"lbp": ["d"]}


def test_every_face_is_found_after_a_switch_during_an_import_and_after_its_rollback(
    service: Service, tmp_path: Path
) -> None:
    upload(service, "c", range(PEOPLE), SHOTS)
    add_recogniser(service, tmp_path)
    running_import = service.client.post(
        "/v1/collections/c:import",
        params={"aligned": True},
        content=archive(range(20, 60), SHOTS),
        headers={"content-type": "application/x-tar"},
    )
    switched = service.wait(request_switch(service, **INSISTED), 120)
    assert switched["state"] == "succeeded", switched["problem"]
    imported = service.wait(running_import, 120)
    assert (imported["state"], imported["progress"]["done"]) == ("succeeded", 40 * SHOTS)
    model = read_champion(service)
    assert model == switched["result"]["model"]
    for back in (False, True):
        if back:
            assert service.client.post(f"{DEPLOYMENT}:rollback").json()["champion"] == LBP_MODEL
        body = {"file": crops(59, 59000, STRONG)["grey"]}
        answer = service.client.post(
            "/v1/collections/c/search?aligned=true&limit=1000&group_by=face", files=body
        ).json()
        assert answer["model"] == (LBP_MODEL if back else model)
        matches = answer["faces"][0]["matches"]
        assert matches[0]["subject"]["id"] == "p59"
        assert len(matches) == (PEOPLE + 40) * SHOTS


@on_sqlite
def test_the_automatic_first_model_does_not_replace_a_recogniser_chosen_later(
    settings: Settings, tmp_path: Path
) -> None:
    with run_service(settings.model_copy(update={"wpca_after_faces": 40})) as service:
        service.client.put("/v1/collections/c")
        add_recogniser(service, tmp_path)
        started = service.client.post(
            "/v1/collections/c:import",
            params={"aligned": True},
            content=archive(range(30), SHOTS),
            headers={"content-type": "application/x-tar"},
        )
        switched = service.wait(request_switch(service, **INSISTED), 120)
        assert switched["state"] == "succeeded", switched["problem"]
        assert service.wait(started, 120)["state"] == "succeeded"
        for job in service.client.get("/v1/jobs?limit=100").json()["jobs"]:
            assert job["finished_at"] or job["kind"] == "sweep", job
        assert read_champion(service) == switched["result"]["model"]


@on_sqlite
def test_a_training_uses_the_recogniser_that_serves(service: Service, tmp_path: Path) -> None:
    upload(service, "c", range(PEOPLE), SHOTS)
    add_recogniser(service, tmp_path)
    switch_recogniser(service)
    result = likeness(service, "train", "c", "--method", "cosine")
    assert result.exit_code == 0, result.output
    [model] = [m for m in service.client.get("/v1/models").json()["models"] if m["training_id"]]
    assert (model["method"], [d["name"] for d in model["descriptors"]]) == ("cosine", ["onnx"])
    assert likeness(service, "train", "c", "--method", "wpca", "--dim", "4").exit_code == 0
    assert likeness(service, "train", "c", "--method", "wpca", "--descriptor", "theirs").exit_code == 0


@on_sqlite
def test_switching_to_an_archived_recogniser_restores_it(service: Service, tmp_path: Path) -> None:
    upload(service, "c", range(4), 2)
    add_recogniser(service, tmp_path)
    add_recogniser(service, tmp_path, "other", flip=-1.0)
    model = switch_recogniser(service)
    switch_recogniser(service, "other")
    switch_recogniser(service, "lbp")
    assert service.client.post(f"/v1/models/{model}:archive").status_code == 200
    assert switch_recogniser(service) == model
    with writing(service.resources.database) as session:
        assert session.get_one(ModelRecord, model).archived_at is None


@on_sqlite
def test_a_new_collection_can_name_its_recogniser(service: Service, tmp_path: Path) -> None:
    add_recogniser(service, tmp_path)
    for status in (201, 200):
        answer = service.client.put("/v1/collections/c", json={"recogniser": "theirs"})
        assert answer.status_code == status, answer.text
    upload(service, "c", range(4), 2)
    assert list_served_collections(service) == {"theirs": ["c"]}
    assert search(service)["faces"][0]["matches"][0]["subject"]["id"] == "p3"
    other = service.client.put("/v1/collections/c", json={"recogniser": "lbp"})
    assert (other.status_code, other.json()["code"]) == (409, "ResourceInUse")
    assert ":use-recogniser" in other.json()["detail"]
    unknown = service.client.put("/v1/collections/d", json={"recogniser": "nobody"})
    assert (unknown.status_code, unknown.json()["code"]) == (422, "UnknownComponent")
    missing = service.client.put("/v1/collections/d", json={"recogniser": "sface"})
    assert (missing.status_code, missing.json()["code"]) == (409, "NotInstalled")
    assert service.client.get("/v1/collections/d").status_code == 404
