"""The page /docs works without internet access and without a key."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from app.config import Settings
from app.console import documentation
from app.console.documentation import get_document, get_page
from app.document.api import DocumentedApi
from app.main import ROUTERS
from tests.flows.console import Page, open_browser
from tests.service import Service, run_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    with run_service(Settings(home=home, poll_seconds=0.05, workers=1, default_recogniser="lbp")) as started:
        yield started


def test_the_page_loads_everything_from_this_server(service: Service) -> None:
    page = service.client.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    references = re.findall(r'(?:src|href)="([^"]+)"', page.text.partition('<script type="application/json"')[0])
    references += re.findall(r'<script src="([^"]+)"', page.text)
    assert len(references) == 4
    for reference in references:
        assert reference.startswith("/"), reference
        answer = service.client.get(reference)
        assert answer.status_code == 200, reference
        assert len(answer.content) > 100
    assert service.client.get("/redoc").status_code == 404, "FastAPI's own pages need a CDN"


def test_the_page_contains_the_document_and_runs_in_a_sandbox_without_the_key(service: Service) -> None:
    page = service.client.get("/docs")
    inside = re.search(r'id="openapi">(.*?)</script>', page.text, re.DOTALL)
    assert inside is not None
    assert json.loads(inside[1]) == service.client.get("/openapi.json").json()
    policy = page.headers["content-security-policy"]
    assert "sandbox allow-scripts" in policy
    assert "allow-same-origin" not in policy
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json"])
def test_a_page_that_the_client_has_is_not_sent_again(service: Service, path: str) -> None:
    first = service.client.get(path)
    again = service.client.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert service.client.get(path, headers={"If-None-Match": '"other"'}).content == first.content
    assert service.client.get(path, headers={"Range": "bytes=9-1"}).status_code == 200


@pytest.mark.parametrize("path", ["/console/style.css", "/console/charts.js", "/docs/swagger-ui.css"])
def test_a_file_is_answered_whole_whatever_ranges_are_asked_for(service: Service, path: str) -> None:
    """Each range cost a read in a thread: 25 ms of processor time for a hundred."""
    whole = service.client.get(path)
    assert (whole.status_code, whole.headers["accept-ranges"]) == (200, "none")
    for ranges in ("0-0", "-5", "9-1", ",".join(f"{start}-{start}" for start in range(0, 200, 2))):
        answer = service.client.get(path, headers={"Range": f"bytes={ranges}"})
        assert (answer.status_code, answer.content) == (200, whole.content), ranges


def test_files_are_sent_from_memory(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a file was read by a thread: lists waited for up to 6.8 s for clients who loaded files of /docs."""
    paths = ("/console/charts.js", "/docs/swagger-ui-bundle.js", "/console/style.css")
    first = [service.client.get(path).content for path in paths]
    monkeypatch.setattr("anyio.open_file", lambda *_, **__: pytest.fail("read again"))
    assert [service.client.get(path).content for path in paths] == first
    head = service.client.head("/console/style.css")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(first[2])))


def test_a_file_of_the_page_that_the_client_has_is_not_sent_again(service: Service) -> None:
    tag = service.client.get("/console/style.css").headers["etag"]
    assert service.client.get("/console/style.css", headers={"If-None-Match": tag}).status_code == 304


def test_pages_are_rendered_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    first = [service.client.get(path).content for path in ("/docs", "/openapi.json")]
    monkeypatch.delattr(documentation, "render_page")
    monkeypatch.delattr(documentation, "json")
    assert [service.client.get(path).content for path in ("/docs", "/openapi.json")] == first


def test_pages_that_many_ask_for_first_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    app, made = DocumentedApi(ROUTERS), list[int]()
    compute = FastAPI.openapi

    def count(self: FastAPI) -> dict[str, Any]:
        made.append(self.openapi_schema is None)
        return compute(self)

    monkeypatch.setattr(FastAPI, "openapi", count)
    with ThreadPoolExecutor(16) as threads:
        pages = list(threads.map(lambda i: (get_document, get_page)[i % 2](app).body, range(16)))
    assert len(set(pages)) == 2
    assert sum(made) == 1


def test_no_redirect_names_the_host_that_a_client_wrote(service: Service) -> None:
    answer = service.client.get("/v1/collections/", headers={"Host": "evil.example"})
    assert (answer.status_code, answer.headers.get("location")) == (404, None)


def test_text_in_the_document_cannot_close_its_script_element() -> None:
    page = documentation.render_page({"description": "</script><script>alert(1)</script>"})
    assert "</script><script>alert" not in page
    assert "\\u003c/script>" in page


def test_a_browser_without_internet_shows_the_page(service: Service, tmp_path: Path) -> None:
    with open_browser(tmp_path, "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1") as browser:
        page = Page(browser, service)
        page.enter()
        assert browser.execute_script("return sessionStorage.getItem('likeness-key')") == page.key
        browser.get(f"{service.url}/docs")
        page.see(".opblock-summary-path", "/v1/collections")
        assert "Likeness" in page.see("h1, h2.title").text
        assert not page.all(".authorize")
        peek = "try { return sessionStorage.getItem('likeness-key') } catch (error) { return error.name }"
        assert browser.execute_script(peek) == "SecurityError"
        assert not page.faults()
