"""Accept the access tokens of an OpenID Connect issuer: who sends one has the role and the collections it states."""

import asyncio
import hashlib
import json
import logging
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from app.config import PREFIX, Settings
from app.deps.caller import RANK, TOKEN_PREFIX, Caller
from app.errors import Busy, Forbidden
from ml.errors import Unavailable

if TYPE_CHECKING:
    from jwt import PyJWKClient

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a public key. A token signed with a shared secret is never accepted."""
REQUIRED_CLAIMS = ("exp", "iss", "aud", "sub")
LEEWAY_SECONDS = 10
TIMEOUT_SECONDS = 5
KEY_SET_SECONDS = 300
RETRY_SECONDS = 2.0
AWAY = "the issuer of tokens cannot be reached; try again shortly, or send a key"
MAX_NAME_CHARACTERS = 100
LAST_SECOND = 253_402_300_799
"""The end of the year 9999, in seconds since 1970."""
ALL_COLLECTIONS = "*"

log = logging.getLogger("likeness.access")


def is_token(secret: str) -> bool:
    """Whether a secret has the form of a signed token (JWS compact serialisation, RFC 7515, section 7.1)."""
    return secret.count(".") == 2 and secret.startswith("eyJ")


class TokenVerifier:
    """Verifies tokens by the public keys of the issuer, which are fetched when the first token comes.

    The keys are kept for five minutes, and fetched again, at most every half minute, for a token that names another.
    Raises Unavailable if the package for it is not installed.
    """

    def __init__(self, settings: Settings) -> None:
        try:
            import jwt  # only where tokens are accepted
        except ImportError:
            raise Unavailable(
                f"{PREFIX}OIDC_ISSUER is set, and the package for tokens is not installed: pip install 'likeness[oidc]'"
            ) from None
        self._jwt = jwt
        self.settings = settings
        self._keys: PyJWKClient | None = None
        self._away_until = -math.inf
        self._turn = asyncio.Lock()

    async def find_caller(self, token: str) -> Caller | None:
        """Return the caller that a token states, or None if the token is not valid.

        Tokens are verified one at a time, so that an issuer that does not answer holds up one thread at most.
        Raises Forbidden if it is valid and states no role or, where one is required, no collection; Busy if the keys
        of the issuer cannot be fetched.
        """
        async with self._turn:
            if time.monotonic() < self._away_until:
                raise Busy(AWAY)
            return await asyncio.to_thread(self._verify, token)

    def _verify(self, token: str) -> Caller | None:
        try:
            key = self._open_keys().get_signing_key_from_jwt(token)
            claims = self._jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=self.settings.oidc_audience,
                issuer=self.settings.oidc_issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": list(REQUIRED_CLAIMS)},
            )
        except (self._jwt.PyJWKClientConnectionError, OSError, ValueError) as error:
            log.warning("access.issuer_away error=%s", error)
            self._away_until = time.monotonic() + RETRY_SECONDS
            raise Busy(AWAY) from error
        except self._jwt.PyJWTError as error:
            log.info("access.token_refused reason=%s", error)
            return None
        if not claims["sub"]:
            log.info("access.token_refused reason=%s", "the claim sub is empty")
            return None
        return self._make_caller(claims)

    def _open_keys(self) -> "PyJWKClient":
        if self._keys is None:
            address = self.settings.oidc_keys_url or self._discover_keys_url()
            self._keys = self._jwt.PyJWKClient(address, lifespan=KEY_SET_SECONDS, timeout=TIMEOUT_SECONDS)
        return self._keys

    def _discover_keys_url(self) -> str:
        """Return `jwks_uri` of the issuer (OpenID Connect Discovery 1.0, section 4). Raises OSError, ValueError."""
        issuer = self.settings.oidc_issuer
        address = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        with urlopen(address, timeout=TIMEOUT_SECONDS) as answer:  # the address is a setting, with http or https
            document = json.load(answer)
        if not isinstance(document, dict) or document.get("issuer") != issuer or "jwks_uri" not in document:
            raise ValueError(f"{address} does not describe the issuer {issuer}")
        return str(document["jwks_uri"])

    def _make_caller(self, claims: Mapping[str, Any]) -> Caller:
        stated = _as_list(_find_claim(claims, self.settings.oidc_roles_claim))
        roles = [self.settings.oidc_roles[name] for name in stated if name in self.settings.oidc_roles]
        if not roles:
            raise Forbidden(
                f"the token's claim {self.settings.oidc_roles_claim} has none of "
                f"{', '.join(sorted(self.settings.oidc_roles))}"
            )
        key_id = make_token_id(str(claims["sub"]))
        names = (claims.get("preferred_username"), claims["sub"], key_id)
        return Caller(
            key_id=key_id,
            role=max(roles, key=lambda role: RANK[role]),
            name=next(name for name in names if isinstance(name, str) and name.isprintable())[:MAX_NAME_CHARACTERS],
            collections=self._find_collections(claims),
            valid_until=float(min(int(claims["exp"]), LAST_SECOND)) + LEEWAY_SECONDS,
        )

    def _find_collections(self, claims: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the collections that the token is bound to; () if it is bound to none. Raises Forbidden."""
        claim = self.settings.oidc_collections_claim
        if not claim:
            return ()
        stated = _as_list(_find_claim(claims, claim))
        if stated == [ALL_COLLECTIONS]:
            return ()
        if not stated:
            raise Forbidden(f"the token's claim {claim} names no collection")
        return tuple(stated)


def make_token_id(subject: str) -> str:
    """Return what stands for the id of a key: the subject of the token, or its hash if that is long or not printable.

    A NUL or half of a surrogate pair cannot be stored, and a line break would forge lines of the log.
    """
    room = 64 - len(TOKEN_PREFIX)
    if len(subject) <= room and subject.isprintable():
        return TOKEN_PREFIX + subject
    return TOKEN_PREFIX + hashlib.sha256(subject.encode("utf-8", "surrogatepass")).hexdigest()[:room]


def _find_claim(claims: Mapping[str, Any], path: str) -> Any:
    """Return the claim of this name or, if there is none, the one at the end of a path such as `realm_access.roles`."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _as_list(value: Any) -> list[str]:
    """Return the words of a claim, which may be a list, or a text with spaces between them."""
    words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    return [word for word in words if isinstance(word, str)]
