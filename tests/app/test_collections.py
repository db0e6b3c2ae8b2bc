import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import delete

from app.collections.schemas import CollectionIn
from app.collections.service import put_collection
from app.db.session import writing
from app.db.tables import Collection, Deployment, ModelRecord
from app.errors import Conflict
from app.resources import Resources
from tests.app.test_faces import picture, wait_until
from tests.databases import remove_test_data
from tests.service import Service


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module, without what the tests before have written."""
    yield lasting_service
    remove_test_data(lasting_service.resources)


def test_a_collection_is_created_once_and_can_be_read(service: Service) -> None:
    assert service.client.put("/v1/collections/staff", json={"description": "door"}).status_code == 201
    assert service.client.put("/v1/collections/staff").status_code == 200
    shown = service.client.get("/v1/collections/staff").json()
    assert (shown["description"], shown["face_count"], shown["subject_count"]) == ("door", 0, 0)


def test_collections_are_listed_in_pages(service: Service) -> None:
    for name in "abcde":
        service.client.put(f"/v1/collections/{name}")
    first = service.client.get("/v1/collections?limit=3").json()
    rest = service.client.get("/v1/collections", params={"limit": 3, "next_token": first["next_token"]}).json()
    assert [c["id"] for c in first["collections"] + rest["collections"]] == list("abcde")
    assert rest.get("next_token") is None
    assert service.client.get("/v1/collections?next_token=broken").status_code == 422


@pytest.mark.parametrize(
    "manifest", [None, {}, {"descriptors": []}, {"descriptors": [{"name": "external", "options": {"size": 0}}]}]
)
def test_a_collection_whose_descriptor_cannot_be_read_is_listed_and_can_be_deleted(
    service: Service, manifest: dict[str, Any] | None
) -> None:
    """As after a restore by an earlier version of a snapshot that was altered."""
    for name in "abc":
        service.client.put(f"/v1/collections/{name}")
    with writing(service.resources.database) as session:
        session.get_one(Collection, "b").external_model = "nope"
        if manifest is not None:
            session.add(ModelRecord(id="nope", manifest=manifest))
    listed = service.client.get("/v1/collections").json()["collections"]
    assert [(c["id"], c["descriptor"], c["damage"] is None) for c in listed] == [
        ("a", None, True), ("b", None, False), ("c", None, True),
    ]  # fmt: skip
    shown = service.client.get("/v1/collections/b").json()
    assert "'nope'" in shown["damage"]
    refused = service.client.post("/v1/collections/b/faces", files={"file": picture()}, data={"aligned": True})
    assert (refused.status_code, refused.json()["code"]) == (503, "ModelUnavailable")
    assert service.client.delete("/v1/collections/b").status_code == 204
    with writing(service.resources.database) as session:
        session.execute(delete(ModelRecord).where(ModelRecord.id == "nope"))


def test_a_deleted_collection_is_not_found(service: Service) -> None:
    service.client.put("/v1/collections/a")
    assert service.client.delete("/v1/collections/a").status_code == 204
    assert service.client.get("/v1/collections/a").status_code == 404
    assert service.client.delete("/v1/collections/a").status_code == 404


def test_an_invalid_collection_id_is_refused(service: Service) -> None:
    assert service.client.put("/v1/collections/a b").status_code == 422
    for name in (201 * "a", "%2E", "%2E%2E"):
        assert service.client.put(f"/v1/collections/{name}").status_code == 422, name
    assert service.client.get("/v1/collections").json()["collections"] == []


def test_a_collection_with_the_longest_id_takes_photos(service: Service) -> None:
    path = f"/v1/collections/{200 * 'a'}"
    assert service.client.put(path).status_code == 201
    photo = {"files": {"file": picture()}, "data": {"aligned": True, "subject": "ada"}}
    assert service.client.post(f"{path}/faces", **photo).status_code == 201
    assert service.client.get(f"{path}/faces").json()["faces"][0]["subject"]["id"] == "ada"


def test_a_photo_for_a_collection_whose_id_is_too_long_for_a_file_is_refused(service: Service) -> None:
    name = 254 * "a"  # which an earlier version accepted
    with writing(service.resources.database) as session:
        lbp = Deployment(collection_id=name, task="identity", champion="lbp-l2")
        session.add_all([Collection(id=name), lbp])
    photo = {"files": {"file": picture()}, "data": {"aligned": True}}
    refused = service.client.post(f"/v1/collections/{name}/faces", **photo)
    assert refused.status_code == 422
    assert "too long" in refused.json()["detail"]
    erasure = service.client.delete(f"/v1/collections/{name}").headers["X-Erasure"]
    wait_until(lambda: service.client.get(erasure).json()["state"] == "final")


def test_of_two_requests_that_make_a_collection_one_makes_it(resources: Resources) -> None:
    def make(dim: int, moment: float = 0.0) -> bool:
        external = {"external": {"name": "t", "dim": dim, "metric": "l2"}}
        with writing(resources.database) as session:
            _, is_new = put_collection(session, resources, "c", CollectionIn.model_validate({"descriptor": external}))
            time.sleep(moment)
        return is_new

    with ThreadPoolExecutor() as threads:
        first = threads.submit(make, 8, 0.5)
        time.sleep(0.2)
        same, other = threads.submit(make, 8), threads.submit(make, 16)
        assert (first.result(), same.result()) == (True, False)
        with pytest.raises(Conflict, match="another descriptor"):
            other.result()
