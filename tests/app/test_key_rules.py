"""The life of a key in the tables: made, looked up, rotated, revoked, and remembered for a moment. No server runs."""

import hashlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import delete
from sqlalchemy.orm import Session

from app.access import key_cache, keys, routes
from app.access.key_cache import KeyCache
from app.db.session import writing
from app.db.tables import Key
from app.deps.caller import Caller
from app.errors import Conflict, Forbidden, Invalid, NotFound
from app.resources import Resources
from app.storage.audit_log.notes import NOTE, AuditNote
from ml.files import hash_bytes

NOW = 1_700_000_000.0


class Clock:
    """A clock that stands until it is set."""

    def __init__(self, at: float) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    standing = Clock(NOW)
    monkeypatch.setattr(keys, "now", standing)
    monkeypatch.setattr(key_cache, "now", standing)
    return standing


@pytest.fixture
def session(lasting_sqlite: Resources, clock: Clock) -> Iterator[Session]:
    with writing(lasting_sqlite.database) as opened:
        yield opened
        opened.execute(delete(Key))


def watch(session: Session) -> AuditNote:
    """Return what the audit log is told of the next change."""
    note = session.info[NOTE] = AuditNote()
    return note


def test_a_new_key_is_stored_as_the_hash_of_its_secret(session: Session) -> None:
    note = watch(session)
    key, secret = keys.create_key(session, "operator", "door", ("a", "b"), NOW + 60)
    assert key.digest == hashlib.sha256(secret.encode()).hexdigest() == hash_bytes(secret.encode())
    assert (key.role, key.name, key.collections, key.expires_at) == ("operator", "door", ["a", "b"], NOW + 60)
    assert (note.collections, note.resource) == ({"a", "b"}, f"key:{key.id}")
    assert secret.startswith("lk_")
    assert len(secret) == 46, "32 random bytes in base64"
    plain = keys.create_key(session, "reader")[0]
    assert (plain.name, plain.collections, plain.expires_at) == ("", [], None)


def test_a_key_that_would_have_expired_already_is_not_made(session: Session) -> None:
    for ends in (NOW, NOW - 1):
        with pytest.raises(Invalid, match=r"^expires_at: it has passed; it is in seconds since 1970$"):
            keys.create_key(session, "reader", expires_at=ends)
    assert keys.create_key(session, "reader", expires_at=NOW + 0.01)[0].expires_at == NOW + 0.01


def test_a_key_whose_name_is_longer_than_its_column_is_not_made(session: Session) -> None:
    assert keys.create_key(session, "reader", "n" * 255)[0].name == "n" * 255
    with pytest.raises(Invalid, match=r"^name: it has 4,096 characters; at most 255 are allowed$"):
        keys.create_key(session, "reader", "n" * 4_096)


def test_the_holder_of_a_secret_is_found_until_the_key_expires_or_is_revoked(session: Session, clock: Clock) -> None:
    key, secret = keys.create_key(session, "operator", "door", ("a", "b"), NOW + 60)
    assert keys.find_caller(session, secret) == Caller(key.id, "operator", "door", ("a", "b"), NOW + 60)
    assert keys.find_caller(session, secret + "x") is None
    clock.at = NOW + 60
    assert keys.find_caller(session, secret) is None
    lasting, other = keys.create_key(session, "reader")
    assert keys.find_caller(session, other) == Caller(lasting.id, "reader")
    lasting.revoked_at = clock.at - 1
    session.flush()
    assert keys.find_caller(session, other) is None


def test_the_secret_before_a_rotation_works_for_the_overlap_and_no_longer_than_the_key(
    session: Session, clock: Clock
) -> None:
    key, first = keys.create_key(session, "reader", "door", ("a",), NOW + 100)
    note = watch(session)
    rotated, second = keys.rotate_key(session, key.id, 30.0)
    assert (rotated.id, rotated.previous_until, note.collections) == (key.id, NOW + 30, {"a"})
    for secret, until in ((first, NOW + 30), (second, NOW + 100)):
        found = keys.find_caller(session, secret)
        assert found is not None
        assert found.valid_until == until
    clock.at = NOW + 30
    assert keys.find_caller(session, first) is None
    keys.rotate_key(session, key.id, 500.0)
    found = keys.find_caller(session, second)
    assert found is not None
    assert found.valid_until == NOW + 100, "the overlap ends with the key"


def test_a_key_that_is_revoked_or_has_expired_is_not_rotated(session: Session, clock: Clock) -> None:
    revoked, expired = (keys.create_key(session, "reader", expires_at=NOW + 60)[0] for _ in range(2))
    revoked.revoked_at = NOW
    session.flush()
    clock.at = NOW + 59
    assert keys.rotate_key(session, expired.id, 0.0)[0].previous_until == NOW + 59
    with pytest.raises(Conflict, match=rf"^key {revoked.id} is revoked or has expired; make another one$"):
        keys.rotate_key(session, revoked.id, 0.0)
    clock.at = NOW + 60
    with pytest.raises(Conflict, match="has expired"):
        keys.rotate_key(session, expired.id, 0.0)
    with pytest.raises(NotFound, match="no key 'none'"):
        keys.rotate_key(session, "none", 0.0)


def test_a_rotation_is_granted_like_a_new_key(session: Session) -> None:
    bound = keys.create_key(session, "admin", collections=("a",))[0]
    lasting = keys.create_key(session, "admin")[0]
    with pytest.raises(Forbidden, match=r"bound to some of a$"):
        keys.rotate_key(session, lasting.id, 0.0, Caller("k", "admin", collections=("a",)))
    assert keys.rotate_key(session, bound.id, 0.0, Caller("k", "admin", collections=("a",)))[0] is bound
    expiring = keys.create_key(session, "admin", expires_at=NOW + 60)[0]
    keys.rotate_key(session, expiring.id, 0.0, Caller("k", "admin", valid_until=NOW + 60))
    with pytest.raises(Forbidden, match=r"bound to some of a, b$"):
        keys.rotate_key(session, lasting.id, 0.0, Caller("k", "admin", collections=("a", "b")))
    with pytest.raises(Forbidden, match="accepted until 1700000060, and can only make or rotate keys that expire by"):
        keys.rotate_key(session, lasting.id, 0.0, Caller("k", "admin", valid_until=NOW + 60))


@pytest.mark.parametrize(
    ("bound", "asked", "is_granted"),
    [
        ((), (), True), ((), ("a",), True), (("a", "b"), ("a",), True), (("a", "b"), ("b", "a"), True),
        (("a",), (), False), (("a",), ("b",), False), (("a",), ("a", "b"), False),
    ],
)  # fmt: skip
def test_a_key_grants_no_collection_that_it_is_not_bound_to(
    bound: tuple[str, ...], asked: tuple[str, ...], is_granted: bool
) -> None:
    caller = Caller("k", "admin", collections=bound)
    if is_granted:
        keys.check_grant(caller, asked, None)
        return
    with pytest.raises(Forbidden, match=rf"^this key can only make keys that are bound to some of {', '.join(bound)}$"):
        keys.check_grant(caller, asked, None)


@pytest.mark.parametrize(
    ("until", "asked", "is_granted"),
    [(None, None, True), (None, 9.0, True), (9.0, 9.0, True), (9.0, 8.0, True), (9.0, 9.5, False), (9.0, None, False)],
)
def test_a_key_grants_no_time_after_its_own(until: float | None, asked: float | None, is_granted: bool) -> None:
    caller = Caller("k", "admin", valid_until=until)
    if is_granted:
        keys.check_grant(caller, (), asked)
        return
    with pytest.raises(Forbidden):
        keys.check_grant(caller, (), asked)


def test_the_holder_of_a_token_grants_keys_that_outlast_it_but_no_other_collections() -> None:
    caller = Caller("oidc:anna", "admin", collections=("a",), valid_until=9.0)
    keys.check_grant(caller, ("a",), None)
    with pytest.raises(Forbidden):
        keys.check_grant(caller, (), None)


def test_the_last_admin_key_that_is_unbound_and_never_expires_stays(session: Session, clock: Clock) -> None:
    last = keys.create_key(session, "admin")[0]
    others = [
        keys.create_key(session, "operator")[0],
        keys.create_key(session, "admin", expires_at=NOW + 60)[0],
        keys.create_key(session, "admin", collections=("a",))[0],
    ]
    assert [key.id for key in keys.list_lasting_admins(session)] == [last.id]
    for refused in range(2):
        sentence = (
            "this is the last admin's key that is bound to no collection and never expires; make another one, then "
            "revoke it"
        )
        with pytest.raises(Conflict, match=rf"^{sentence}$"):
            keys.revoke_key(session, last.id)
        assert last.revoked_at is None, refused
    note = watch(session)
    for key in others:
        keys.revoke_key(session, key.id)
        assert key.revoked_at == NOW
    assert note.collections == {"a"}
    second = keys.create_key(session, "admin")[0]
    session.flush()
    assert [key.id for key in keys.list_lasting_admins(session)] == sorted([last.id, second.id])
    keys.revoke_key(session, last.id)
    session.flush()
    clock.at = NOW + 5
    keys.revoke_key(session, last.id)
    assert last.revoked_at == NOW, "the first time counts"
    with pytest.raises(Conflict):
        keys.revoke_key(session, second.id)
    assert second.revoked_at is None, "a revoked key is no other key"
    with pytest.raises(NotFound):
        keys.revoke_key(session, "none")


def test_processes_are_told_of_a_revocation_once_and_after_its_commit(lasting_sqlite: Resources) -> None:
    heard: list[str] = []
    resources: Any = SimpleNamespace(notifier=SimpleNamespace(notify=heard.append))
    with Session(lasting_sqlite.database) as session:
        routes._notify_after_commit(session, resources)
        session.add(key := Key(role="reader", digest="d", name=""))
        session.flush()
        assert heard == []
        session.commit()
        assert heard == ["keys"]
        session.delete(key)
        session.commit()
        assert heard == ["keys"]


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that does not jump, by which the cache measures."""
    standing = Clock(100.0)
    monkeypatch.setattr(key_cache, "time", SimpleNamespace(monotonic=standing))
    return standing


def test_a_caller_is_remembered_for_the_seconds_since_its_lookup_began(clock: Clock, monotonic: Clock) -> None:
    cache, caller = KeyCache(2.0), Caller("k", "reader")
    assert cache.find("digest") is None
    store = cache.prepare_entry("digest")
    monotonic.at = 101.0  # the lookup took a second
    store(caller)
    monotonic.at = 102.0
    assert cache.find("digest") is caller
    monotonic.at = 102.1
    assert cache.find("digest") is None


def test_a_caller_is_not_remembered_after_its_expiry(clock: Clock, monotonic: Clock) -> None:
    cache, caller = KeyCache(2.0), Caller("k", "reader", valid_until=NOW + 1)
    cache.prepare_entry("digest")(caller)
    clock.at = NOW + 0.9
    assert cache.find("digest") is caller
    clock.at = NOW + 1
    assert cache.find("digest") is None


def test_the_cache_forgets_all_when_it_is_full(clock: Clock, monotonic: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_cache, "MAX_CACHED_KEYS", 2)
    cache, caller = KeyCache(2.0), Caller("k", "reader")
    for digest in "ab":
        cache.prepare_entry(digest)(caller)
    assert [cache.find(digest) for digest in "ab"] == [caller, caller]
    cache.prepare_entry("c")(caller)
    assert [cache.find(digest) for digest in "abc"] == [None, None, caller]


def test_a_caller_has_its_role_and_all_lower_ones_and_signs_by_name_or_id() -> None:
    roles = ("reader", "operator", "admin")
    allowed = {role: [other for other in roles if Caller("k", role).may(other)] for role in roles}
    assert allowed == {"reader": ["reader"], "operator": ["reader", "operator"], "admin": list(roles)}
    assert [Caller("k", "reader", name).signature for name in ("door", "")] == ["door", "k"]
    Caller("k", "reader").check("any")
    Caller("k", "reader", collections=("a", "b")).check("b")
    with pytest.raises(NotFound, match=r"^no collection 'c'$"):
        Caller("k", "reader", collections=("a", "b")).check("c")
