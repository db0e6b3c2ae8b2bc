"""What holds for every answer: headers that protect browsers, and the methods of a path."""

import httpx
import pytest

from app.console.routes import POLICY
from app.deps.server.immediate_answers import ImmediateAnswer, _make_headers
from app.deps.server.security_headers import CACHE_POLICY, CONTENT_POLICY, SECURITY_HEADERS
from tests.openapi_checker import openapi_document
from tests.service import Service

pytestmark = pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
OWN_POLICY = ("/", "/docs")
OWN_CACHE_POLICY = {
    "/": "no-cache",
    "/docs": "no-cache",
    "/openapi.json": "no-cache",
    "/console/js/main.js": "no-cache",
    "/docs/swagger-ui.css": "max-age=86400",
}
"""The files of the page, which hold nothing of a gallery. A refusal is kept of no path."""
ANSWERS = [
    ("GET", "/", 200),
    ("GET", "/docs", 200),
    ("GET", "/docs/swagger-ui.css", 200),
    ("GET", "/console/js/main.js", 200),
    ("GET", "/console/none.js", 404),
    ("GET", "/openapi.json", 200),
    ("GET", "/livez", 200),
    ("GET", "/v1/tasks", 200),
    ("GET", "/v1/nonsense", 404),
    ("GET", "/v1/jobs/", 404),
    ("GET", "/v1/jobs/none", 404),
    ("POST", "/livez", 405),
    ("PUT", "/console/style.css", 405),
    ("GET", "/v1/jobs?limit=0", 422),
    ("OPTIONS", "/v1/jobs", 405),
]


@pytest.fixture
def service(lasting_service: Service) -> Service:
    return lasting_service


@pytest.mark.parametrize(("method", "path", "status"), ANSWERS)
def test_every_answer_has_the_security_headers(service: Service, method: str, path: str, status: int) -> None:
    check_headers(service.client.request(method, path), status, path)


def check_headers(answer: httpx.Response, status: int, path: str) -> None:
    assert answer.status_code == status
    for name, value in SECURITY_HEADERS:
        [sent] = answer.headers.get_list(name.decode())
        if (name, value) == CACHE_POLICY:
            assert sent == (OWN_CACHE_POLICY.get(path, "no-store") if status < 400 else "no-store")
        else:
            assert sent == value.decode() or (path in OWN_POLICY and name == CONTENT_POLICY[0])
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "server" not in answer.headers, "nobody needs to know which server this is"


def test_nothing_that_the_api_answers_is_kept_by_a_cache(service: Service) -> None:
    """A browser would keep names after its key was forgotten; a cache between would give them to anybody."""
    paths = openapi_document()["paths"]
    for path in (path for path, operations in paths.items() if "get" in operations):
        answer = service.client.get(path.replace("{", "").replace("}", ""))
        assert answer.headers.get_list("cache-control") == ["no-store"], (path, answer.status_code)
    assert CACHE_POLICY in _make_headers({}, ImmediateAnswer([], b"{}")), "what is answered before all layers"


def test_a_file_of_the_page_is_kept_until_it_has_changed(service: Service) -> None:
    tag = service.client.get("/console/js/main.js").headers["etag"]
    answer = service.client.get("/console/js/main.js", headers={"If-None-Match": tag})
    assert (answer.status_code, answer.headers["cache-control"]) == (304, "no-cache")


def test_refusals_and_failures_have_the_security_headers(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of the service")

    path = "/v1/tasks"
    check_headers(httpx.get(service.url + path), 401, path)
    check_headers(httpx.post(service.url + "/v1/labels", headers=service.key("reader")), 403, path)
    too_long = " " * (service.resources.settings.max_json_bytes + 1)
    check_headers(service.client.put("/v1/collections/a", content=too_long), 413, path)
    check_headers(service.client.get(path, headers={"x-long": "x" * 70_000}), 431, path)
    monkeypatch.setattr("app.tasks.service.list_tasks", fail)
    check_headers(service.client.get(path), 500, path)


def test_a_failure_says_that_its_connection_is_closed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of the service")

    with monkeypatch.context() as patch:
        patch.setattr("app.tasks.service.list_tasks", fail)
        for _ in range(20):  # a connection that was closed unannounced would sometimes be reset in the next request
            assert service.client.get("/v1/tasks").headers["connection"] == "close"
            assert service.client.get("/livez").status_code == 200


def test_the_page_runs_only_scripts_of_this_server(service: Service) -> None:
    policy = dict(part.strip().split(" ", 1) for part in POLICY.split(";"))
    assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == ("'none'", "'self'", "'self'")
    page = service.client.get("/").text
    assert "<script" in page
    assert all("src=" in tag.partition(">")[0] for tag in page.split("<script")[1:]), "an inline script would not run"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/livez", "GET"),
        ("PATCH", "/v1/labels", "DELETE, GET, POST"),
        ("PATCH", "/v1/collections/a", "DELETE, GET, PUT"),
        ("GET", "/v1/collections/a/search", "POST"),
        ("PUT", "/v1/jobs/7:cancel", "POST"),
        ("OPTIONS", "/v1/collections/a/subjects/b:merge", "POST"),
        ("GET", "/v1/collections/a/clusters/7:dismiss", "POST"),
        ("PUT", "/v1/collections/a:forecast", "POST"),
        ("POST", "/", "GET"),
        ("POST", "/console/style.css", "GET, HEAD"),
        ("TRACE", "/v1/jobs", "GET"),
    ],
)
def test_a_refused_method_is_answered_with_those_that_the_path_has(
    service: Service, method: str, path: str, allowed: str
) -> None:
    answer = service.client.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (405, "InvalidRequest")
    assert answer.headers["Allow"] == allowed
