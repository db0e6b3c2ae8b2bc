"""Uploads of vectors: the parts of the form, the format of the table, and what is left of a refused upload."""

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.databases import remove_test_data
from tests.npy import to_npy
from tests.service import Service

BASE = "/v1/collections/c"
VECTORS = to_npy(np.eye(3, dtype=np.float32))


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module, with an empty collection of imported vectors."""
    body = {"descriptor": {"external": {"dim": 3, "metric": "l2"}}}
    lasting_service.client.put(BASE, json=body).raise_for_status()
    yield lasting_service
    remove_test_data(lasting_service.resources)


def send(service: Service, **request: Any) -> httpx.Response:
    return service.client.post(f"{BASE}/faces:import-embeddings", **request)


@pytest.mark.parametrize(
    ("files", "detail"),
    [
        ({"file": VECTORS}, "a part named `vectors`"),
        ({"vectors": VECTORS, "photos": b""}, "not 'photos'"),
        ([("vectors", VECTORS), ("vectors", VECTORS)], "not 'vectors'"),
        ({"table": b"subject\na\nb\nc"}, "no part named `vectors`"),
    ],
)
def test_a_form_with_other_parts_is_refused_and_leaves_nothing(service: Service, files: Any, detail: str) -> None:
    answer = send(service, files=files)
    assert answer.status_code == 422
    assert detail in answer.json()["detail"]
    assert not list(service.resources.uploads.iterdir())


@pytest.mark.parametrize("body", [b"", VECTORS[:-1], b"PK\x03\x04"])
@pytest.mark.parametrize("is_form", [True, False])
def test_what_is_no_array_is_refused_and_leaves_nothing(service: Service, body: bytes, is_form: bool) -> None:
    answer = send(service, files={"vectors": body}) if is_form else send(service, content=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "InvalidVectors")
    assert not list(service.resources.uploads.iterdir())


def test_a_form_that_is_cut_off_is_refused(service: Service) -> None:
    request = httpx.Request("POST", "http://x", files={"vectors": VECTORS})
    whole = request.read()
    answer = send(service, content=whole[:-10], headers={"content-type": request.headers["content-type"]})
    assert (answer.status_code, answer.json()["code"]) == (422, "InvalidRequest")
    assert not list(service.resources.uploads.iterdir())


@pytest.mark.parametrize(
    "table",
    [
        "subject,team\na,x\nb,y\nc,z\n",
        '\ufeffsubject,team\r\na,x\r\n"b",y\r\nc,z',
        '{"subject": "a", "team": "x"}\n{"subject": "b", "team": "y"}\n\n{"subject": "c", "team": "z"}',
        '\ufeff \n{"subject": "a", "metadata": {"team": "x"}}\n{"subject": "b", "team": "y"}'
        '\n{"subject": " c ", "team": "z"}',
        "file,subject,team\n1.jpg,a,x\n2.jpg,b,y\n3.jpg,c,z\n",
    ],
)
def test_a_table_is_csv_or_json_lines(service: Service, table: str) -> None:
    job = service.wait(send(service, files={"table": table.encode(), "vectors": VECTORS}))
    assert job["state"] == "succeeded", job["problem"]
    faces = service.client.get(f"{BASE}/faces").json()["faces"]
    described = {(face["subject"]["id"], face["metadata"]["team"]) for face in faces}
    assert described == {("a", "x"), ("b", "y"), ("c", "z")}


def test_a_training_asks_a_method_for_no_more_numbers_than_it_can_make_of_the_vectors(service: Service) -> None:
    """CP-mtML starts its common projection from the axes after those of the first, so that it needs two of each."""
    rows = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    table = "subject\n" + "".join(f"p{number // 4}\n" for number in range(40))
    service.wait(send(service, files={"vectors": to_npy(rows), "table": table.encode()}))

    def train(**request: Any) -> httpx.Response:
        request = {"collection": "c", "holdout": 0, "options": {"steps": 20}} | request
        return service.client.post("/v1/trainings", json=request)

    ended = service.wait(train(method="cpmtml"))
    assert ended["state"] == "succeeded", ended
    training = service.client.get(f"/v1/trainings/{ended['result']['training']}").json()
    assert training["request"]["options"]["dim"] == 1
    for request, limit in (
        ({"method": "cpmtml", "dim": 2}, 1),
        ({"method": "cpmtml", "dim": 4, "options": {"common": "first"}}, 3),
        ({"method": "wpca", "dim": 4, "options": {}}, 3),
    ):
        refused = train(**request)
        assert refused.status_code == 422, refused.text
        assert f"dim must be at most {limit} for descriptors of 3 numbers" in refused.text
