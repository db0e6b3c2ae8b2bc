"""The structure of JSON bodies is limited before they are parsed."""

import json
import re
from typing import Any

import pytest

from app.deps.server.json_limits import MAX_DEPTH, MAX_KEYS, MAX_VALUES, JsonLimits, check_json, is_surely_accepted
from app.deps.server.request_structure import MAX_QUERY_PARAMETERS, RequestStructureMiddleware, allow_values
from app.errors import Invalid
from tests.asgi import Answer, call

JSON = [("content-type", "application/json")]
KEYS = {f"k{i}": i for i in range(MAX_KEYS)}
LONG_KEY = "k" * 5_000
TEXT = 'a,b:[{"' * 30_000


def nest(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1",
        nest(MAX_DEPTH),
        json.dumps(KEYS).encode(),
        json.dumps([KEYS] * 50).encode(),
        json.dumps([0] * MAX_VALUES).encode(),
        json.dumps({"text": TEXT}).encode(),
        json.dumps({"text": "\\" * 9, TEXT: [TEXT, {}]}).encode(),
        b"]" * 10**6 + nest(MAX_DEPTH + 1),  # a parser stops at once
    ],
)
def test_json_within_the_limits_passes(data: bytes) -> None:
    check_json(data)


@pytest.mark.parametrize(
    ("data", "limit"),
    [
        (nest(MAX_DEPTH + 1), "64 levels"),
        (b'{"a":' * 10**6, "64 levels"),
        (json.dumps(KEYS | {"one": "more"}).encode(), "1,000 keys"),
        (json.dumps([{}, {"labels": [KEYS | {"one": "more"}]}]).encode(), "1,000 keys"),
        (b"{" + b'"same":1,' * 10**6, "1,000 keys"),
        (json.dumps([0] * (MAX_VALUES + 2)).encode(), "100,000 values"),
        (b"[" + b"{}," * 10**5, "100,000 values"),
        (b"{" * 60 + b'""' * 10**6 + b":" * 2_000, "100,000 values"),
        (b'{"a\\":":' + b"[" * 65, "64 levels"),
    ],
)
def test_json_beyond_a_limit_is_refused_with_its_name(data: bytes, limit: str) -> None:
    with pytest.raises(Invalid, match=limit):
        check_json(data)


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ('{"a": 1, "a": 1}', "'a'"),
        ('[{"a": 1}, {"b": {"c": [], "a": 2, "c": {}}}]', "'c'"),
        ('{"subject": "Ada", "\\u0073ubject": "Grace"}', "'subject'"),
        ('{"\\ud800": 1, "\\ud800": 2}', "ud800"),
        (json.dumps({"text": TEXT})[:-1] + ', "text": 1}', "'text'"),
        (f'{{"{LONG_KEY}": 1, "{LONG_KEY}": 2}}', LONG_KEY[:100] + "'"),
    ],
)
def test_a_key_that_an_object_has_twice_is_refused_with_its_name(data: str, key: str) -> None:
    for given in (data, data.encode()):
        with pytest.raises(Invalid, match=re.escape(key)) as refused:
            check_json(given)
        assert len(refused.value.detail) < 200


@pytest.mark.parametrize(
    "data", [b'{"a": {"a": 1}, "b": {"a": "a"}}', b'[{"a": 1}, {"a": 1}]', b'{"a": "a:a", "b": ":"}', b'{"a": 1, "a": ']
)
def test_keys_of_different_objects_may_be_equal(data: bytes) -> None:
    check_json(data)


def test_what_is_surely_accepted_the_limits_is_not_scanned() -> None:
    assert is_surely_accepted(json.dumps({"image": "A" * 10**6}).encode())
    assert is_surely_accepted(json.dumps({"vector": [0.1] * 65_536}).encode())
    assert not is_surely_accepted(json.dumps(["a,b"] * 10).encode(), JsonLimits(values=19))


async def echo_length(scope: Any, receive: Any, send: Any) -> None:
    length, more = 0, True
    while more:
        message = await receive()
        length, more = length + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(length).encode()})


def post(body: bytes, headers: list[tuple[str, str]] = JSON, **requirements: Any) -> Answer:
    state = {"requirements": {"x-role": "reader"} | requirements, "request_id": "r"}
    chunks = [body[:100], body[100:]]
    return call(RequestStructureMiddleware(echo_length), "POST", "/v1/x", headers=headers, chunks=chunks, state=state)


@pytest.mark.parametrize("length", [10, 100_000])
def test_the_middleware_refuses_a_key_that_is_sent_twice(length: int) -> None:
    answer = post(b'{"description": "%s", "description": ""}' % (b"x" * length))
    assert (answer.status, answer.json()["code"]) == (422, "InvalidParameter")
    assert "'description'" in answer.json()["detail"]


def test_the_middleware_answers_for_what_the_framework_would_parse() -> None:
    long = json.dumps([0] * (MAX_VALUES + 2)).encode()
    answer = post(long)
    assert (answer.status, answer.json()["code"], answer.json()["request_id"]) == (422, "InvalidParameter", "r")
    assert "100,000 values" in answer.json()["detail"]
    assert post(long, [("content-type", "application/vnd.api+json; charset=utf-8")]).status == 422
    for passed in (
        post(long[:5000]),
        post(long, **allow_values(200_000)),
        post(long, []),
        post(long, **{"x-body": "lines"}),
    ):
        assert passed.status == 200
    assert post(long[:5000]).body == b"5000"


def test_a_query_has_a_limited_number_of_parameters() -> None:
    state = {"requirements": {"x-role": "reader"}, "request_id": "r"}
    for count, status in ((MAX_QUERY_PARAMETERS, 200), (MAX_QUERY_PARAMETERS + 1, 422)):
        query = "&".join(["a=1"] * count)
        answer = call(RequestStructureMiddleware(echo_length), "GET", "/v1/x", query=query, state=dict(state))
        assert answer.status == status
    assert "at most 100" in answer.json()["detail"]
