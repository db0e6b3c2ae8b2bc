"""Access to the API: keys, roles, bound keys and size limits, all checked before a body is read."""

import socket
import time

import httpx
import pytest

from app.access.request_checks import MAX_SMALL_JSON_BYTES
from tests.service import Service


@pytest.fixture
def service(lasting_service: Service) -> Service:
    return lasting_service


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer nonsense"}, {"x-api-key": "nonsense"}])
def test_a_request_without_a_valid_key_gets_a_401_problem(service: Service, headers: dict[str, str]) -> None:
    answer = httpx.get(f"{service.url}/v1/collections", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "detail", "code", "request_id"} <= answer.json().keys()


def test_a_key_is_accepted_as_bearer_token_and_as_x_api_key(service: Service) -> None:
    bearer = service.key("reader")
    secret = bearer["Authorization"].removeprefix("Bearer ")
    for headers in (bearer, {"x-api-key": secret}):
        assert httpx.get(f"{service.url}/v1/collections", headers=headers).status_code == 200


def test_a_role_is_refused_what_a_higher_role_may_do(service: Service) -> None:
    url = f"{service.url}/v1/collections/a"
    assert httpx.put(url, headers=service.key("reader")).status_code == 403
    assert httpx.put(url, headers=service.key("operator")).status_code == 201
    assert httpx.get(f"{service.url}/v1/keys", headers=service.key("operator")).status_code == 403


def test_a_bound_key_can_access_only_its_own_collections(service: Service) -> None:
    headers = service.key("operator", "mine")
    assert httpx.put(f"{service.url}/v1/collections/mine", headers=headers).status_code == 201
    assert httpx.put(f"{service.url}/v1/collections/other", headers=headers).status_code == 403


def test_a_revoked_key_is_refused(service: Service) -> None:
    made = service.client.post("/v1/keys", json={"role": "reader", "name": "guest"}).json()
    assert made["key"].startswith("lk_")
    listed = service.client.get("/v1/keys").json()["keys"]
    assert "key" not in listed[-1], "the secret is shown once"
    assert service.client.delete(f"/v1/keys/{made['id']}").status_code == 204
    answer = httpx.get(f"{service.url}/v1/collections", headers={"x-api-key": made["key"]})
    assert answer.status_code == 401


def test_a_request_without_a_key_is_refused_before_its_body_arrives(service: Service) -> None:
    host, port = service.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(b"POST /v1/collections/a:import HTTP/1.1\r\nHost: x\r\nContent-Length: 900000000\r\n\r\n")
        began = time.monotonic()
        assert b" 401 " in raw.recv(100), "the answer comes although the body never did"
        assert time.monotonic() - began < 5


def test_a_client_that_sends_its_whole_body_still_receives_the_refusal(service: Service) -> None:
    body = b"x" * 800_000
    refused = [httpx.post(f"{service.url}/v1/labels", content=body) for _ in range(20)]
    assert {answer.status_code for answer in refused} == {401}


def test_a_body_over_the_limit_is_refused_by_declared_and_by_counted_length(service: Service) -> None:
    over = MAX_SMALL_JSON_BYTES + 1

    def undeclared():  # type: ignore[no-untyped-def]
        for _ in range(over // 65536 + 2):
            yield b" " * 65536

    declared = service.client.put("/v1/collections/a", content=b" " * over)
    counted = service.client.put("/v1/collections/a", content=undeclared())
    assert {declared.status_code, counted.status_code} == {413}
    assert declared.json()["detail"] == "the body may have 1,048,576 bytes; send less"


def test_routes_that_take_much_have_the_limit_of_the_settings(service: Service) -> None:
    padding = " " * MAX_SMALL_JSON_BYTES
    for path in ("labels", "evaluations", "trainings", "collections/a/search:by-embedding", "models/none:refit"):
        answer = service.client.post(f"/v1/{path}", content="{" + padding + "}")
        assert answer.status_code == 422, (path, answer.text)
        over = "{" + " " * service.resources.settings.max_json_bytes + "}"
        assert service.client.post(f"/v1/{path}", content=over).status_code == 413, path


def test_an_unknown_path_is_answered_with_a_problem(service: Service) -> None:
    answer = service.client.get("/v1/nonsense")
    assert (answer.status_code, answer.json()["code"]) == (404, "ResourceNotFound")
