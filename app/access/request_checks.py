"""What is checked of a request before its body is parsed: key, role, scope and length."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qs

from fastapi.routing import APIRoute
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from app.access import keys
from app.access.key_cache import KeyCache
from app.access.oidc import TokenVerifier, is_token
from app.access.rate_limits import RateLimits, find_address
from app.config import Settings
from app.db.failures import describe_failure
from app.db.session import reading
from app.deps.caller import Caller
from app.deps.scopes import ROW_KINDS, RouteScope, check_binding, check_row, list_query_names
from app.deps.server.request_headers import find_header
from app.errors import AppError, Busy, Forbidden, Invalid, Unauthenticated
from app.resources import Resources
from app.storage.request_timestamp import RequestTimestamp

Result = TypeVar("Result")
log = logging.getLogger("likeness.access")
MAX_KEY_CACHE_SECONDS = 1.0
MAX_LOOKUP_SECONDS = 5.0
"""For so long a request waits for the database to tell its key. A server that hangs closes no connection."""
MULTIPART_OVERHEAD_BYTES = 65_536
MAX_SMALL_JSON_BYTES = 2**20
"""Of a JSON body that its route does not declare to be large."""


UNKNOWN_ROUTE = {"x-body": "unread"}
"""What is declared of a request that no documented route answers: it gets a 404, a 405 or a page."""
NO_ANSWER = "the database does not answer; nothing of this request was stored"


class RequestChecks:
    """The checks of requests to these routes. Its methods raise AppError for what AuthMiddleware answers itself."""

    def __init__(self, routes: Sequence[BaseRoute], settings: Settings, resources: Callable[[], Resources]) -> None:
        self.settings, self.resources = settings, resources
        self._routes = _group_routes(routes)
        self._parameters = {id(r): list_query_names(r.dependant) for r in routes if isinstance(r, APIRoute)}
        self.cache = KeyCache(min(settings.poll_seconds, MAX_KEY_CACHE_SECONDS))
        self.limits = RateLimits(settings)
        self.tokens = TokenVerifier(settings) if settings.oidc_issuer else None
        self._renewals: dict[str, asyncio.Task[None]] = {}
        self._lookups: dict[asyncio.Future[Caller | None], float] = {}  # those under way, and when they began
        self._listens_to: Resources | None = None
        self._traffic = RequestTimestamp(settings.home)

    async def check(self, scope: Scope) -> int:
        """Check a request, note in its state what AuthMiddleware promises, and return how long its body may be."""
        route, path_params = self._match_route(scope)
        requirements = UNKNOWN_ROUTE if route is None else getattr(route, "openapi_extra", None) or {}
        state = scope["state"]
        state |= {"requirements": requirements, "path_params": path_params}
        role = requirements.get("x-role")
        if role is not None:
            self._check_stores()
            await self.limits.count_request(find_address(scope))
            state["caller"] = caller = await self._authenticate(scope)
            await self.limits.count_use(caller.key_id)
            _check_role(caller, role)
            await self._check_scope(scope, RouteScope(requirements["x-scope"]), caller, path_params)
            _check_parameters(scope, self._parameters.get(id(route)))
            state["secret_field"] = requirements.get("x-secret")
            state["is_read"] = requirements.get("x-read", False)
            self._stamp_traffic(scope)
        elif "x-scope" not in requirements:  # the probes alone have a scope and need no key
            await self.limits.count_request(find_address(scope))
        return self.max_body_bytes(requirements)

    async def check_again(self, scope: Scope) -> None:
        """Raises Unauthenticated if the key of a request that was checked is not accepted any more.

        An archive may take longer to arrive than a token holds, and nobody can revoke a token.
        """
        caller: Caller | None = scope["state"].get("caller")
        if caller is None or (caller.has_token and scope["state"]["requirements"].get("x-body") == "archive"):
            return
        with suppress(Busy):  # what stores something finds the database away, too
            await self._authenticate(scope)

    def find_known_caller(
        self, scope: Scope, headers: Mapping[bytes, bytes], requirements: Mapping[str, Any], collection: str
    ) -> Caller | None:
        """Return the holder of the key of a request to a collection if nothing has to be waited for.

        headers: of the request, which has each once that is read here
        None: the key must be looked up, a limit of requests is near, or something is wrong, which `check` explains.
        """
        secret = _choose_secret(_decode(headers, b"authorization"), _decode(headers, b"x-api-key"))
        resources = self.resources()
        if not secret or resources.home.find_fault() is not None or (resources.reach and resources.reach.find_fault()):
            return None
        self._listen_for_revocations()
        digest = keys.hash_secret(secret)
        caller = self.cache.find(digest)
        if caller is None or not caller.may(requirements["x-role"]):
            return None
        if self.cache.is_ageing(digest) and digest not in self._renewals:
            self._renewals[digest] = asyncio.get_running_loop().create_task(self._renew(secret, digest))
        is_covered = not caller.collections or collection in caller.collections
        has_room = self.limits.are_off or self.limits.has_room(find_address(scope), caller.key_id)
        return caller if is_covered and has_room else None

    async def _renew(self, secret: str, digest: str) -> None:
        """Look a key up again before the cache drops its holder, so that no request has to wait for it."""
        store = self.cache.prepare_entry(digest)
        try:
            caller = await self._look_up(secret)
        except AppError as error:
            log.debug("access.key_not_renewed error=%s", error)  # the cache drops it, and the next request is told
        else:
            if caller is None:
                self._forget_key(digest)
            else:
                store(caller)
        finally:
            self._renewals.pop(digest, None)

    def _forget_key(self, digest: str) -> None:
        """Forget a secret that is not accepted any more, and that it was."""
        self.cache.forget(digest)
        self.limits.note_refused(digest)

    def count_at_once(self, requests: Sequence[tuple[Scope, Caller]]) -> None:
        """Count searches for which `find_known_caller` has returned a caller."""
        if not self.limits.are_off:
            for scope, caller in requests:
                self.limits.count_at_once(find_address(scope), caller.key_id)
        self._traffic.stamp()

    def _check_stores(self) -> None:
        """Raises Busy if the home was moved, or if this process alone does not hear of changes."""
        resources = self.resources()
        resources.home.check()
        if resources.reach is not None:
            resources.reach.check()

    def _stamp_traffic(self, scope: Scope) -> None:
        if scope["method"] == "POST":  # a page that polls for progress does not count as traffic
            self._traffic.stamp()

    def _match_route(self, scope: Scope) -> tuple[BaseRoute | None, dict[str, Any]]:
        """Return the documented route that answers a request, None if there is none, and the parameters of its path."""
        for route in self._routes.get((scope["method"], _count_segments(scope)), ()):
            match, child = route.matches(scope)
            if match == Match.FULL:
                return route, child.get("path_params", {})
        return None, {}

    def max_body_bytes(self, requirements: Mapping[str, Any]) -> int:
        """Return the limit of the route's kind of body; one that is not declared is JSON."""
        settings = self.settings
        two_photos_as_base64 = 2 * 4 * (settings.max_image_bytes // 3 + 1)
        photo = two_photos_as_base64 + MULTIPART_OVERHEAD_BYTES
        limits = {
            "photo": photo,
            "archive": settings.max_import_bytes,
            "lines": settings.max_json_bytes,
            "unread": sys.maxsize,
        }
        is_large = requirements.get("x-large-json", False)
        json_bytes = settings.max_json_bytes if is_large else min(settings.max_json_bytes, MAX_SMALL_JSON_BYTES)
        return limits.get(requirements.get("x-body", ""), json_bytes)

    async def _authenticate(self, scope: Scope) -> Caller:
        secret = _read_secret(scope)
        if not secret:
            raise Unauthenticated("send a key: Authorization: Bearer KEY, or x-api-key: KEY")
        caller = await self._find_caller(secret, find_address(scope))
        if caller is None:
            raise Unauthenticated("this key is unknown or was revoked")
        return caller

    async def _check_scope(
        self, scope: Scope, of_route: RouteScope, caller: Caller, path_params: Mapping[str, Any]
    ) -> None:
        """Raises Forbidden or NotFound if the key is bound to collections and the request reaches beyond them."""
        if not caller.collections:
            return
        check_binding(of_route, caller, path_params, parse_qs(scope["query_string"].decode("latin-1")))
        if of_route in ROW_KINDS:
            await asyncio.to_thread(
                self._read, lambda session: check_row(session, of_route, path_params), caller.collections
            )

    async def _find_caller(self, secret: str, address: str) -> Caller | None:
        """Find the holder of a key or token. One that is known is looked up again when the cache has dropped it."""
        self._listen_for_revocations()
        digest = keys.hash_secret(secret)
        caller = self.cache.find(digest)
        if caller is None:
            await self.limits.check_guesses(address, digest)
            store = self.cache.prepare_entry(digest)
            try:
                caller = await self._look_up(secret)
            except Busy:
                if (reach := self.resources().reach) is not None:
                    reach.note_loss()
                    reach.check()
                caller = self.cache.find_stale(digest)  # a search by vector needs no database
                if caller is None:
                    raise
                return caller
            if caller is None:
                self._forget_key(digest)
                await self.limits.count_wrong_key(address)
            else:
                store(caller)
                self.limits.note_accepted(digest)
        return caller

    async def _look_up(self, secret: str) -> Caller | None:
        if self.tokens is not None and is_token(secret):
            return await self.tokens.find_caller(secret)
        look_up = partial(self._read, lambda session: keys.find_caller(session, secret))
        reach = self.resources().reach
        if reach is None or not reach.is_remote:  # SQLite answers or fails
            return await asyncio.to_thread(look_up)
        return await self._look_up_in_time(look_up)

    async def _look_up_in_time(self, look_up: Callable[[], Caller | None]) -> Caller | None:
        """Raises Busy where PostgreSQL has not answered this lookup, or an earlier one, within MAX_LOOKUP_SECONDS."""
        if any(time.monotonic() - began > MAX_LOOKUP_SECONDS for began in self._lookups.values()):
            raise Busy(NO_ANSWER)  # further ones would take all threads
        lookup = asyncio.ensure_future(asyncio.to_thread(look_up))
        self._lookups[lookup] = time.monotonic()
        lookup.add_done_callback(self._end_lookup)
        try:
            return await asyncio.wait_for(asyncio.shield(lookup), MAX_LOOKUP_SECONDS)
        except TimeoutError as error:
            raise Busy(NO_ANSWER) from error

    def _end_lookup(self, lookup: asyncio.Future[Caller | None]) -> None:
        del self._lookups[lookup]
        if not lookup.cancelled():
            lookup.exception()  # which nobody waits for any more, if it came too late

    def _listen_for_revocations(self) -> None:
        """Have the cache cleared when a key is revoked in this process or, with Redis, in another."""
        resources = self.resources()
        if self._listens_to is not resources:
            self._listens_to = resources
            resources.notifier.listen("keys", self.cache.clear)

    def _read(self, work: Callable[[Session], Result], collections: Sequence[str] = ()) -> Result:
        try:
            with reading(self.resources().database, collections) as session:
                return work(session)
        except OperationalError as error:
            raise describe_failure(error) from error


def _count_segments(scope: Scope) -> int:
    """Return the number of slashes in the path that Starlette matches routes with: that below the prefix of a proxy."""
    path, prefix = scope["path"], scope.get("root_path", "")
    is_below = path == prefix or path.startswith(f"{prefix}/")
    return int((path[len(prefix) :] if is_below else path).count("/"))


def _group_routes(routes: Sequence[BaseRoute]) -> dict[tuple[str, int], list[BaseRoute]]:
    """Return the routes by method and number of slashes: to try all ninety would take as long as all other checks."""
    groups: dict[tuple[str, int], list[BaseRoute]] = {}
    for route in routes:
        assert isinstance(route, Route), route
        for method in route.methods or ():
            groups.setdefault((method, route.path.count("/")), []).append(route)
    return groups


def _check_parameters(scope: Scope, known: Collection[str] | None) -> None:
    """Raises Invalid if the query has a parameter that the route does not know: what it asks for would not be done."""
    if not scope["query_string"] or known is None:
        return
    unknown = [n for n in parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True) if n not in known]
    if unknown:
        takes = f"takes {', '.join(sorted(known))}" if known else "takes none"
        raise Invalid(f"unknown parameter {unknown[0]!r} in the query, which {takes}: see /docs")


def _check_role(caller: Caller, role: str) -> None:
    if not caller.may(role):  # type: ignore[arg-type]
        raise Forbidden(f"this operation needs the role {role}; the key has the role {caller.role}")


def _read_secret(scope: Scope) -> str:
    """Return the key or token of a request; empty if it has none."""
    return _choose_secret(find_header(scope, b"authorization"), find_header(scope, b"x-api-key"))


def _choose_secret(authorization: str, api_key: str) -> str:
    """Return the key or token in these headers, each empty if it was not sent."""
    scheme, _, bearer = authorization.partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else api_key


def _decode(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")
