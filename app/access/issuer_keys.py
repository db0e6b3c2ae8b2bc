"""Fetch the public keys of an OpenID Connect issuer, within limits of time and bytes, and keep them for a while."""

import asyncio
import json
import logging
import math
import ssl
import time
from typing import TYPE_CHECKING, Any

from app.config import Settings
from app.errors import Busy

if TYPE_CHECKING:
    from jwt import PyJWK

FETCH_SECONDS = 5.0
"""For both documents together, however slowly they come."""
MAX_DOCUMENT_BYTES = 2**20
KEY_SET_SECONDS = 300.0
NEW_KEY_SECONDS, RETRY_SECONDS = 30.0, 2.0
"""After how long the keys are fetched again for a token that names an unknown one: since they came, and since that
failed. Whoever has no token can name any."""
AWAY = "the issuer of tokens cannot be reached; try again shortly, or send a key"

log = logging.getLogger("likeness.access")


class IssuerKeys:
    """The issuer's keys by their names. They are fetched once for all tokens that wait.

    While an issuer hangs, or answers something else, tokens whose keys are known go on, for up to five minutes.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._keys: dict[str, PyJWK] = {}
        self._fetched_at = self._tried_at = -math.inf
        self._turn = asyncio.Lock()

    async def find(self, name: Any) -> "PyJWK | None":
        """Return the key of this name, None if the issuer has none. Raises Busy if its keys cannot be fetched."""
        if self._is_known(name):
            return self._keys[name]
        async with self._turn:
            if not self._is_known(name) and self._is_due():
                await self._fetch()
            if self._is_known(name):
                return self._keys[name]
            if self._tried_at > self._fetched_at:  # the last attempt failed: the key may be new
                raise Busy(AWAY)
        return None

    def _is_known(self, name: Any) -> bool:
        is_fresh = time.monotonic() - self._fetched_at < KEY_SET_SECONDS
        return is_fresh and isinstance(name, str) and name in self._keys

    def _is_due(self) -> bool:
        has_failed = self._tried_at > self._fetched_at
        return time.monotonic() - self._tried_at >= (RETRY_SECONDS if has_failed else NEW_KEY_SECONDS)

    async def _fetch(self) -> None:
        import httpx  # only where tokens are accepted

        try:
            async with asyncio.timeout(FETCH_SECONDS):
                certificates = await asyncio.to_thread(ssl.create_default_context)
                async with httpx.AsyncClient(verify=certificates, timeout=FETCH_SECONDS) as client:
                    address = self.settings.oidc_keys_url or await self._discover_address(client)
                    keys = await asyncio.to_thread(_read_keys, await _fetch_json(client, address))
        except (OSError, ValueError, RecursionError, httpx.HTTPError, httpx.InvalidURL) as error:  # OSError: too slow
            self._tried_at = time.monotonic()
            log.warning("access.issuer_away error=%s", str(error) or type(error).__name__)
        else:
            self._keys = keys
            self._fetched_at = self._tried_at = time.monotonic()

    async def _discover_address(self, client: Any) -> str:
        """Return `jwks_uri` of the issuer (OpenID Connect Discovery 1.0, section 4). Raises ValueError."""
        issuer = self.settings.oidc_issuer
        address = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        document = await _fetch_json(client, address)
        if document.get("issuer") != issuer or "jwks_uri" not in document:
            raise ValueError(f"{address} does not describe the issuer {issuer}")
        return str(document["jwks_uri"])


async def _fetch_json(client: Any, address: str) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError, RecursionError, httpx.HTTPError."""
    body = bytearray()
    async with client.stream("GET", address) as answer:
        if answer.status_code != 200:
            raise ValueError(f"{address} answers {answer.status_code}")
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > MAX_DOCUMENT_BYTES:
                raise ValueError(f"{address} has more than {MAX_DOCUMENT_BYTES:,} bytes")
    document = json.loads(body)
    if not isinstance(document, dict):
        raise ValueError(f"{address} is not a JSON object")
    return document


def _read_keys(document: dict[str, Any]) -> "dict[str, PyJWK]":
    """Return the keys for signatures of a set, of which the first of a name counts. Raises ValueError if it has none.

    A key that is unusable, secret or private is left out: nobody but the issuer could sign with what it publishes.
    """
    import jwt  # only where tokens are accepted

    keys: dict[str, PyJWK] = {}
    stated = document.get("keys")
    for description in stated if isinstance(stated, list) else ():
        try:
            key = jwt.PyJWK.from_dict(description)
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError, KeyError) as error:
            log.debug("access.issuer_key_left_out error=%s", error)
            continue
        if isinstance(key.key_id, str) and key.public_key_use in ("sig", None) and hasattr(key.key, "verify"):
            keys.setdefault(key.key_id, key)
    if not keys:
        raise ValueError("the issuer publishes no key for signatures")
    return keys
