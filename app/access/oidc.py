"""Accept the access tokens of an OpenID Connect issuer: who sends one has the role and the collections it states."""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from app.access.issuer_keys import IssuerKeys
from app.config import PREFIX, Settings
from app.deps.caller import RANK, TOKEN_PREFIX, Caller
from app.errors import Forbidden
from ml.errors import Unavailable

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a public key. A token signed with a shared secret is never accepted."""
REQUIRED_CLAIMS = ("exp", "iss", "aud", "sub")
LEEWAY_SECONDS = 10
MAX_NAME_CHARACTERS = 100
LAST_SECOND = 253_402_300_799
"""The end of the year 9999, in seconds since 1970."""
ALL_COLLECTIONS = "*"

log = logging.getLogger("likeness.access")


def is_token(secret: str) -> bool:
    """Whether a secret has the form of a signed token (JWS compact serialisation, RFC 7515, section 7.1)."""
    return secret.count(".") == 2 and secret.startswith("eyJ")


class TokenVerifier:
    """Verifies tokens by the public keys of the issuer. Raises Unavailable if the package for it is not installed."""

    def __init__(self, settings: Settings) -> None:
        try:
            import jwt  # only where tokens are accepted
        except ImportError:
            raise Unavailable(
                f"{PREFIX}OIDC_ISSUER is set, and the package for tokens is not installed: pip install 'likeness[oidc]'"
            ) from None
        self._jwt = jwt
        self.settings = settings
        self.keys = IssuerKeys(settings)

    async def find_caller(self, token: str) -> Caller | None:
        """Return the caller that a token states, or None if the token is not valid.

        Raises Forbidden if it is valid and states no role or, where one is required, no collection; Busy if the keys
        of the issuer cannot be fetched.
        """
        try:
            key = await self.keys.find(self._jwt.get_unverified_header(token).get("kid"))
            if key is None:
                raise self._jwt.InvalidTokenError("the issuer has no key of this name")
            claims = await asyncio.to_thread(self._verify, token, key)
        except self._jwt.PyJWTError as error:
            log.warning("access.token_refused reason=%.200r", str(error))
            return None
        return self._make_caller(claims)

    def _verify(self, token: str, key: "PyJWK") -> dict[str, Any]:
        """Return what a token states. Raises PyJWTError."""
        try:
            claims = self._jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=self.settings.oidc_audience,
                issuer=self.settings.oidc_issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": list(REQUIRED_CLAIMS), "enforce_minimum_key_length": True},
            )
        except (ValueError, RecursionError) as error:
            raise self._jwt.DecodeError("it cannot be read") from error
        if not claims["sub"]:
            raise self._jwt.InvalidTokenError("the claim sub is empty")
        return dict(claims)

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
