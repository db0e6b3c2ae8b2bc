"""The caller of a request: the holder of its key, with a role and collections."""

from dataclasses import dataclass, field
from typing import Literal

from app.db.lookups import make_not_found

Role = Literal["reader", "operator", "admin"]
TOKEN_PREFIX = "oidc:"
"""Of the ids of callers who sent a token instead of a key."""
RANK: dict[str, int] = {"reader": 0, "operator": 1, "admin": 2}


@dataclass(frozen=True)
class Caller:
    """The holder of a key or, if `key_id` begins with TOKEN_PREFIX, of a token.

    collections: empty means all; valid_until: the time from which the secret is refused, None if it is not limited
    digest: the hash of the key's secret that was sent, empty for a token
    """

    key_id: str
    role: Role
    name: str = ""
    collections: tuple[str, ...] = ()
    valid_until: float | None = None
    digest: str = field(default="", compare=False, repr=False)

    @property
    def signature(self) -> str:
        """The name under which the caller is recorded: the key's name, or its id."""
        return self.name or self.key_id

    @property
    def has_token(self) -> bool:
        """Whether the caller sent a token of an OpenID Connect issuer."""
        return self.key_id.startswith(TOKEN_PREFIX)

    def may(self, role: Role) -> bool:
        """Whether the caller has this role or a higher one."""
        return RANK[self.role] >= RANK[role]

    def check(self, collection: str) -> None:
        """Raises NotFound if the key is bound to other collections, in the words for a collection that is not there."""
        if self.collections and collection not in self.collections:
            raise make_not_found("collection", collection)
