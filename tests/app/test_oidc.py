"""Access tokens of an OpenID Connect issuer: a real one, with keys of its own, that answers over HTTP."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from pydantic import ValidationError
from sqlalchemy import select

from app.access import issuer_keys
from app.access.oidc import TokenVerifier, make_token_id
from app.config import Settings
from app.db.session import reading
from app.db.tables import AuditEntry
from app.errors import Busy
from app.resources import Resources, open_resources
from ml.errors import Unavailable
from tests.databases import migrate
from tests.service import serve_api
from tests.two_collections import MINE, OTHER, CollectionRows, fill_collection

AUDIENCE = "likeness"
SUBJECT = "4f1c-anna"


@dataclass
class Issuer:
    """Signs tokens, and serves its discovery document and public keys. `fetches` counts the requests for keys.

    published: in place of its keys; hangs: whether it sends a byte of them now and then, and never ends
    """

    url: str = ""
    keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=dict)
    fetches: int = 0
    is_away: bool = False
    published: bytes | None = None
    hangs: threading.Event = field(default_factory=threading.Event)

    def add_key(self, name: str) -> None:
        self.keys[name] = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def sign(self, *roles: str, by: str = "k1", **changed: Any) -> str:
        claims = {"iss": self.url, "aud": AUDIENCE, "sub": SUBJECT, "exp": time.time() + 300, "roles": list(roles)}
        claims = {name: value for name, value in (claims | changed).items() if value is not None}
        return jwt.encode(claims, self.keys[by], algorithm="RS256", headers={"kid": by})

    def answer(self, path: str) -> dict[str, Any] | None:
        if self.is_away:
            return None
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        self.fetches += 1
        return {"keys": [RSAAlgorithm.to_jwk(k.public_key(), as_dict=True) | {"kid": n} for n, k in self.keys.items()]}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    issuer.add_key("k1")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = issuer.answer(self.path)
            self.send_response(200 if answer else 500)
            self.end_headers()
            is_document = answer is not None and "issuer" in answer
            with suppress(OSError):  # the service has hung up
                while issuer.hangs.is_set():
                    self.wfile.write(b" ")
                    time.sleep(0.1)
                published = None if is_document else issuer.published
                self.wfile.write(json.dumps(answer).encode() if published is None else published)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield issuer
        server.shutdown()
        thread.join()


@dataclass
class World:
    """The API over two collections. bound: the same with tokens that must state their collections"""

    free: httpx.Client
    bound: httpx.Client
    resources: Resources
    rows: dict[str, CollectionRows]


@pytest.fixture(scope="module")
def world(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    settings = Settings(
        home=tmp_path_factory.mktemp("home"), default_recogniser="lbp", oidc_issuer=issuer.url, oidc_audience=AUDIENCE
    )
    migrate(settings)
    with ExitStack() as stack:
        resources = stack.enter_context(open_resources(settings))
        clients = []
        for claim in ("", "likeness.collections"):
            changed = settings.model_copy(update={"oidc_collections_claim": claim})
            url = stack.enter_context(serve_api(changed))
            clients.append(stack.enter_context(httpx.Client(base_url=url, timeout=60, verify=False)))
        rows = {name: fill_collection(resources, name) for name in (MINE, OTHER)}
        yield World(clients[0], clients[1], resources, rows)


def send(client: httpx.Client, token: str, method: str = "GET", path: str = "/v1/collections", **body: Any) -> Any:
    return client.request(method, path, headers={"authorization": f"Bearer {token}"}, **body)


def test_a_token_has_its_highest_role(world: World, issuer: Issuer) -> None:
    reader, operator = issuer.sign("likeness-reader"), issuer.sign("other", "likeness-reader", "likeness-operator")
    label = {"pairs": [{"first": world.rows[MINE].faces[0], "second": world.rows[MINE].faces[1], "same": True}]}
    assert send(world.free, reader).status_code == 200
    assert send(world.free, reader, "POST", "/v1/labels", json=label).status_code == 403
    assert send(world.free, operator, "POST", "/v1/labels", json=label).status_code != 403
    assert send(world.free, operator, path="/v1/keys").status_code == 403
    assert send(world.free, issuer.sign("likeness-admin"), path="/v1/keys").status_code == 200


def test_a_role_may_stand_within_another_claim(issuer: Issuer, tmp_path: Path) -> None:
    settings = Settings(
        home=tmp_path, oidc_issuer=issuer.url, oidc_audience=AUDIENCE, oidc_roles_claim="realm_access.roles",
        oidc_roles={"staff": "reader"}, default_recogniser="lbp", oidc_keys_url=f"{issuer.url}/keys",
    )  # fmt: skip
    migrate(settings)
    with serve_api(settings) as url, httpx.Client(base_url=url, timeout=60, verify=False) as client:
        assert send(client, issuer.sign(realm_access={"roles": ["staff"]})).status_code == 200
        assert send(client, issuer.sign("staff")).status_code == 403


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": 1000.0},
        {"exp": None},
        {"sub": None},
        {"sub": ""},
        {"aud": "another-service"},
        {"aud": None},
        {"iss": "http://127.0.0.1:9/other"},
        {"nbf": 9e9},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_a_token_with_a_wrong_claim_is_refused(world: World, issuer: Issuer, changed: dict[str, Any]) -> None:
    answer = send(world.free, issuer.sign("likeness-admin", **changed))
    assert (answer.status_code, answer.json()["code"]) == (401, "AccessDenied")


def test_a_token_that_the_issuer_has_not_signed_is_refused(world: World, issuer: Issuer) -> None:
    stranger = Issuer(issuer.url)
    stranger.add_key("k1")
    claims = {"iss": issuer.url, "aud": AUDIENCE, "sub": "x", "exp": time.time() + 300, "roles": ["likeness-admin"]}
    header, body, signature = issuer.sign("likeness-reader").split(".")
    forged = jwt.utils.base64url_encode(json.dumps(claims).encode()).decode()
    public = RSAAlgorithm.to_jwk(issuer.keys["k1"].public_key(), as_dict=True)["n"]
    tokens = [
        stranger.sign("likeness-admin"),
        jwt.encode(claims, "", algorithm="none", headers={"kid": "k1"}),
        jwt.encode(claims, public, algorithm="HS256", headers={"kid": "k1"}),
        f"{header}.{forged}.{signature}",
        f"{header}.{body}.",
        f"{header}.{body}.{signature[:-4]}AAAA",
        "eyJ..",
    ]
    assert [send(world.free, token).status_code for token in tokens] == [401] * len(tokens)


@pytest.mark.filterwarnings("ignore:The RSA key is 1024 bits long")  # of the issuer, who signs with it
def test_a_token_of_a_short_key_is_refused(issuer: Issuer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weak = Issuer(issuer.url, {"k1": rsa.generate_private_key(public_exponent=65537, key_size=1024)})
    settings = Settings(home=tmp_path, oidc_issuer=issuer.url, oidc_audience=AUDIENCE)
    verifier = TokenVerifier(settings)
    issuer.published = json.dumps(weak.answer("/keys")).encode()
    try:
        assert asyncio.run(verifier.find_caller(weak.sign("likeness-reader"))) is None
    finally:
        issuer.published = None
    assert "access.token_refused reason='The RSA key is 1024 bits long" in caplog.text


def test_a_token_without_a_role_is_told_which_roles_there_are(world: World, issuer: Issuer) -> None:
    answer = send(world.free, issuer.sign("likeness-king"))
    assert answer.status_code == 403
    assert "likeness-admin, likeness-operator, likeness-reader" in answer.json()["detail"]


def test_a_token_is_bound_to_the_collections_that_it_states(world: World, issuer: Issuer) -> None:
    token = issuer.sign("likeness-admin", likeness={"collections": [MINE]})
    assert send(world.bound, token, path=f"/v1/collections/{MINE}").status_code == 200
    assert send(world.bound, token, path=f"/v1/collections/{OTHER}").status_code == 404
    assert [c["id"] for c in send(world.bound, token).json()["collections"]] == [MINE]
    everywhere = issuer.sign("likeness-reader", likeness={"collections": "*"})
    assert send(world.bound, everywhere, path=f"/v1/collections/{OTHER}").status_code == 200
    for stated in (None, [], "", 7, {"collections": []}):
        assert send(world.bound, issuer.sign("likeness-admin", likeness=stated)).status_code == 403


def test_a_new_key_of_the_issuer_is_fetched(issuer: Issuer, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, oidc_issuer=issuer.url, oidc_audience=AUDIENCE, default_recogniser="lbp")
    migrate(settings)
    with serve_api(settings) as url, httpx.Client(base_url=url, timeout=60, verify=False) as client:
        issuer.is_away = True
        away = send(client, issuer.sign("likeness-reader"))
        assert (away.status_code, away.headers["retry-after"]) == (503, "1")
        assert client.get("/v1/collections", headers={"x-api-key": "lk_wrong"}).status_code == 401  # keys are looked up
        issuer.is_away = False
        deadline = time.monotonic() + 60
        while send(client, issuer.sign("likeness-reader")).status_code == 503:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        fetches = issuer.fetches
        assert all(send(client, issuer.sign("likeness-reader", jti=i)).status_code == 200 for i in "abc")
        assert issuer.fetches == fetches


@pytest.mark.parametrize(
    "published",
    [
        b"<html>",
        b"[]",
        b'{"keys": []}',
        b'{"keys": null}',
        b'{"error": "try again"}',
        b"[" * 200_000,
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "k1", "alg": "HS256"}]}',
        b" " * 2**21 + b'{"keys": []}',
    ],
    ids=lambda published: str(published[:12]),
)
def test_an_issuer_that_answers_something_else_counts_as_away(
    issuer: Issuer, tmp_path: Path, published: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """No right token is answered like a wrong key, of which an address may send only so many."""
    verifier = TokenVerifier(Settings(home=tmp_path, oidc_issuer=issuer.url, oidc_audience=AUDIENCE))
    issuer.published = published
    try:
        with pytest.raises(Busy, match="cannot be reached"):
            asyncio.run(verifier.find_caller(issuer.sign("likeness-reader")))
    finally:
        issuer.published = None
    assert "access.issuer_away" in caplog.text


def test_an_issuer_that_hangs_holds_up_no_token_whose_key_is_known(
    issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_keys, "FETCH_SECONDS", 0.5)
    monkeypatch.setattr(issuer_keys, "NEW_KEY_SECONDS", 0.0)
    verifier = TokenVerifier(Settings(home=tmp_path, oidc_issuer=issuer.url, oidc_audience=AUDIENCE))
    stranger = Issuer(issuer.url)
    stranger.add_key("unknown")

    async def ask() -> None:
        assert await verifier.find_caller(issuer.sign("likeness-reader")) is not None
        issuer.hangs.set()
        forged = asyncio.create_task(verifier.find_caller(stranger.sign("likeness-admin", by="unknown")))
        await asyncio.sleep(0.1)
        known = asyncio.wait_for(verifier.find_caller(issuer.sign("likeness-reader")), 0.3)
        assert await known is not None, "it waits for the keys that a stranger's token names"
        with pytest.raises(Busy):
            await asyncio.wait_for(forged, 20)

    try:
        asyncio.run(ask())
    finally:
        issuer.hangs.clear()


def test_what_a_token_does_is_audited_under_its_subject(world: World, issuer: Issuer) -> None:
    assert send(world.free, issuer.sign("likeness-admin"), path="/v1/audit").status_code == 200
    deadline = time.monotonic() + 60
    while True:
        with reading(world.resources.database) as session:
            if f"oidc:{SUBJECT}" in session.scalars(select(AuditEntry.key_id)).all():
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_expiry_that_is_written_as_a_text_counts(world: World, issuer: Issuer) -> None:
    """The package for tokens takes it for the number that it is; the service answered 500."""
    token = issuer.sign("likeness-reader", exp=str(int(time.time()) + 300))
    assert send(world.free, token, "GET", "/v1/collections").status_code == 200


@pytest.mark.parametrize("subject", ["nul\0", "half \ud800", "two\nlines"])
def test_a_subject_that_cannot_be_stored_or_printed_is_hashed(world: World, issuer: Issuer, subject: str) -> None:
    """A NUL in an entry of the audit log was refused by PostgreSQL, and no entry after it was ever written."""
    token = issuer.sign("likeness-admin", sub=subject, preferred_username=subject, exp=10**400)
    made = send(world.free, token, "POST", "/v1/keys", json={"role": "reader"})
    assert made.status_code == 201, made.text
    deadline = time.monotonic() + 60
    while True:
        with reading(world.resources.database) as session:
            if make_token_id(subject) in session.scalars(select(AuditEntry.key_id)).all():
                break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert make_token_id(subject).isprintable()


def test_a_stream_of_events_ends_with_its_token(world: World, issuer: Issuer) -> None:
    job = world.rows[MINE].ids["job"]
    token = issuer.sign("likeness-reader", exp=time.time() - 8)  # accepted for another two seconds
    path, headers = f"/v1/jobs/{job}/events", {"authorization": f"Bearer {token}"}
    with world.free.stream("GET", path, headers=headers) as stream:
        assert stream.status_code == 200
        assert any("data:" in line for line in stream.iter_lines())  # reads until the service ends the stream


def test_a_token_makes_keys_that_outlast_it(world: World, issuer: Issuer) -> None:
    made = send(world.free, issuer.sign("likeness-admin"), "POST", "/v1/keys", json={"role": "reader"})
    assert made.status_code == 201
    assert made.json()["expires_at"] is None


def test_without_its_package_the_service_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(Unavailable, match=r"pip install 'likeness\[oidc\]'"):
        TokenVerifier(Settings(home=tmp_path, oidc_issuer="https://issuer.example", oidc_audience=AUDIENCE))


def test_an_issuer_needs_an_audience(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="oidc_audience"):
        Settings(home=tmp_path, oidc_issuer="https://issuer.example")
    with pytest.raises(ValidationError, match="https://"):
        Settings(home=tmp_path, oidc_issuer="file:///etc", oidc_audience=AUDIENCE)
