"""Every problem of the API is provoked and compared with the document; none is a 500."""

from typing import Any

import anyio
import httpx
import pytest
from sqlalchemy import select
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from app.config import Settings
from app.db.session import reading
from app.db.tables import StoredResponse
from app.deps.headers import HEADERS
from app.deps.paging import encode_token
from app.deps.problems import MEDIA_TYPE, Problem
from app.main import create_app
from tests.app.test_faces import picture
from tests.gallery import enrol
from tests.openapi_checker import OpenApiChecker, openapi_document
from tests.service import Service

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

C, NO_C = {"collection": "c"}, {"collection": "nobody"}
FACE = C | {"face_id": "none"}
MODEL = C | {"task": "identity"}
BROKEN_JSON = {"content": b"\xff", "headers": {"Content-Type": "application/json"}}
BROKEN_FORM = {"content": b"zzz", "headers": {"Content-Type": "multipart/form-data; boundary=b"}}
NO_PICTURE = {"files": {"file": b"no picture"}}
LABEL = {"face_a": "none", "face_b": "nobody", "same": True}

WRONG: list[tuple[str, str, dict[str, str], dict[str, Any], int, str]] = [
    ("get", "/metrics", {}, {"headers": {"Authorization": ""}}, 401, "AccessDenied"),
    ("get", "/info", {}, {"headers": {"Authorization": "Bearer x"}}, 401, "AccessDenied"),
    ("post", "/v1/keys", {}, {"json": {"role": "king"}}, 422, "InvalidParameter"),
    ("post", "/v1/keys", {}, BROKEN_JSON, 400, "InvalidRequest"),
    ("delete", "/v1/keys/{key_id}", {"key_id": "none"}, {}, 404, "ResourceNotFound"),
    ("get", "/v1/collections", {}, {"params": {"next_token": "?"}}, 422, "InvalidPaginationToken"),
    ("put", "/v1/collections/{collection}", C, {"json": {"name": ""}}, 422, "InvalidParameter"),
    ("delete", "/v1/collections/{collection}", NO_C, {}, 404, "ResourceNotFound"),
    ("get", "/v1/collections/{collection}/subjects", NO_C, {}, 404, "ResourceNotFound"),
    ("patch", "/v1/collections/{collection}/subjects/{subject}", C | {"subject": "x"}, {}, 422, "InvalidParameter"),
    (
        "post",
        "/v1/collections/{collection}/subjects/{subject}:merge",
        C | {"subject": "p0"},
        {"json": {"into": "p0"}},
        422,
        "InvalidParameter",
    ),
    ("post", "/v1/collections/{collection}/faces", C, NO_PICTURE, 422, "InvalidImageFormat"),
    ("post", "/v1/collections/{collection}/faces", C, BROKEN_FORM, 400, "InvalidRequest"),
    ("get", "/v1/collections/{collection}/faces/{face_id}/crop", FACE, {}, 404, "ResourceNotFound"),
    ("post", "/v1/collections/{collection}:import", C, {"content": b"no archive"}, 422, "InvalidArchive"),
    ("post", "/v1/collections/{collection}:import", C, BROKEN_FORM, 422, "InvalidRequest"),
    ("post", "/v1/collections/{collection}:import", C, {"json": {"directory": "/etc"}}, 403, "AccessDenied"),
    ("post", "/v1/collections/{collection}/search", C, {"files": {"file": picture()}}, 422, "NoFace"),
    ("post", "/v1/collections/{collection}/faces/{face_id}/search", FACE, {}, 404, "ResourceNotFound"),
    (
        "post",
        "/v1/collections/{collection}/search:by-embedding",
        C,
        {"json": {"vector": [0.5]}, "params": {"task": "age"}},
        404,
        "UnknownTask",
    ),
    (
        "post",
        "/v1/collections/{collection}/search:by-embedding",
        C,
        {"json": {"vector": [0.5]}, "params": {"fmr": 0.01}},
        409,
        "NotCalibrated",
    ),
    ("post", "/v1/verify", {}, NO_PICTURE | {"params": NO_C | {"face_id": "x"}}, 404, "ResourceNotFound"),
    ("post", "/v1/verify", {}, NO_PICTURE | {"params": C | {"face_id": "x", "model": "m"}}, 404, "UnknownModel"),
    ("post", "/v1/labels", {}, {"json": {"labels": [LABEL]}}, 422, "ResourceNotFound"),
    ("post", "/v1/labels:import", {}, {"content": b"a,b\n"}, 422, "InvalidParameter"),
    ("post", "/v1/labels:suggest", {}, {"json": NO_C}, 404, "ResourceNotFound"),
    ("put", "/v1/tasks/{name}", {"name": "identity"}, {"json": {"enabled": False}}, 409, "ResourceInUse"),
    ("post", "/v1/trainings", {}, {"json": C | {"method": "magic"}}, 422, "UnknownComponent"),
    ("get", "/v1/trainings/{training_id}", {"training_id": "none"}, {}, 404, "ResourceNotFound"),
    ("post", "/v1/evaluations", {}, {"json": C | {"task": "age", "model": "lbp-l2"}}, 422, "UnknownTask"),
    ("post", "/v1/models/{model}:archive", {"model": "lbp-l2"}, {}, 409, "ResourceInUse"),
    ("get", "/v1/collections/{collection}/deployments/{task}", C | {"task": "age"}, {}, 404, "ResourceNotFound"),
    (
        "post",
        "/v1/collections/{collection}/deployments/{task}:rollback",
        MODEL,
        {"headers": {"If-Match": '"7"'}},
        412,
        "PreconditionFailed",
    ),
    (
        "post",
        "/v1/collections/{collection}/deployments/{task}:publish",
        MODEL,
        {"json": {"model": "lbp-l2", "override": True}},
        422,
        "ReasonRequired",
    ),
    ("post", "/v1/jobs/{job_id}:cancel", {"job_id": "none"}, {}, 404, "ResourceNotFound"),
]


@on_sqlite
def test_every_error_is_answered_as_the_document_lists_it(service: Service) -> None:
    enrol(service.resources, "c", range(2), shots=2)
    for method, path, named, sent, status, code in WRONG:
        answer = service.client.request(method, path.format(**named), **sent)
        assert (answer.status_code, answer.json()["code"]) == (status, code), (method, path, answer.text)
        response = openapi_document()["paths"][path][method]["responses"][str(status)]
        assert answer.headers["content-type"] == MEDIA_TYPE
        assert code in response["content"][MEDIA_TYPE]["examples"]
        assert {name for name in HEADERS if name in answer.headers} == set(response["headers"])
        assert Problem.model_validate_json(answer.content).request_id == answer.headers["X-Request-Id"]


NUL = {"a": "\0"}
LISTS = ("keys", "collections", "collections/c/subjects", "collections/c/faces", "labels", "trainings", "evaluations")
HOSTILE: list[tuple[str, str, dict[str, Any]]] = [
    *(
        ("get", f"/v1/{name}", {"params": {"next_token": encode_token(v)}})
        for name in LISTS
        for v in (NUL, "\0", 1.5, 2**70)
    ),
    *(("get", f"/v1/{name}/%00", {}) for name in ("jobs", "models", "evaluations", "trainings")),
    ("delete", "/v1/keys/%00", {}),
    ("get", "/v1/collections/c/faces?subject=%00", {}),
    ("get", "/v1/evaluations?collection=%00", {}),
    ("put", "/v1/collections/c", {"json": {"description": "\0"}}),
    ("put", "/v1/collections/c/subjects/x", {"json": {"metadata": NUL}}),
    ("post", "/v1/keys", {"json": {"role": "reader", "name": "\0"}}),
    ("post", "/v1/trainings", {"json": C | {"sources": [{"from": "labels", "labellers": {"\0": 1}}]}}),
    ("post", "/v1/evaluations", {"json": C | {"files": [{"name": "a", "text": "\0"}]}}),
    ("post", "/v1/evaluations", {"json": C | {"training": {"method": "l2", "options": NUL}}}),
    *(
        ("post", "/v1/collections/c/search:by-embedding", {"json": {"vector": [1]}, "params": {"filter": wanted}})
        for wanted in ('{"metadata": {"a": "\\u0000"}}', '{"metadata": {"\\u0000": 1}}', '{"subject": "\\u0000"}')
    ),
]


def test_text_that_a_database_cannot_store_or_compare_is_refused(service: Service) -> None:
    service.client.put("/v1/collections/c")
    for method, path, sent in HOSTILE:
        answer = service.client.request(method, path, **sent)
        assert answer.status_code == 422, (method, path, sent, answer.text)
    kept = {"metadata": {"a": "\\u0000"}}  # the backslash itself, which is text like any other
    assert service.client.put("/v1/collections/c/subjects/x", json=kept).json()["metadata"] == kept["metadata"]


def send_request(app: Any, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    """Send a request to the application, without a server."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.get(path, headers=headers)

    return anyio.run(ask)


def test_an_unexpected_error_is_answered_with_its_request_id(tmp_path_factory: pytest.TempPathFactory) -> None:
    app = create_app(Settings(home=tmp_path_factory.mktemp("home")))
    app.add_api_route("/broken", lambda: 1 // 0)
    with_id = {"X-Request-Id": "abc"}
    answer = send_request(app, "/broken", with_id)
    assert (answer.status_code, answer.json()["code"]) == (500, "InternalServerError")
    assert (answer.headers["X-Request-Id"], answer.json()["request_id"]) == ("abc", "abc")
    assert "ZeroDivisionError" not in answer.text


@on_sqlite
def test_a_repeated_search_is_carried_out_anew(service: Service) -> None:
    faces = enrol(service.resources, "c", range(2), shots=2)
    ask = f"/v1/collections/c/faces/{faces[0].face_id}/search"
    first, again = (service.client.post(ask, headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert "Idempotent-Replayed" not in again.headers
    assert again.headers["X-Model"] == first.headers["X-Model"]
    with reading(service.resources.database) as session:
        assert session.scalar(select(StoredResponse)) is None


class UndocumentedAnswers:
    """Answers everything with a page that no document lists."""

    def __init__(self) -> None:
        self.documented = create_app(Settings()).documented
        self.status = 418

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("tea", self.status)(scope, receive, send)


def test_the_checker_reports_answers_that_the_document_does_not_list() -> None:
    app = UndocumentedAnswers()
    checker = OpenApiChecker(app)  # type: ignore[arg-type]
    send_request(checker, "/v1/collections")
    app.status = 200
    send_request(checker, "/v1/collections")
    assert checker.violations == [
        "GET /v1/collections 418 is not listed",
        "GET /v1/collections 200: the header X-Request-Id is listed and not sent",
        "GET /v1/collections 200: text/plain is not listed",
    ]
