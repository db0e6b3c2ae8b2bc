"""Who calls, and what they may do."""

from dataclasses import dataclass
from typing import Literal

from app.errors import Forbidden

Role = Literal["reader", "operator", "admin"]
RANK: dict[str, int] = {"reader": 0, "operator": 1, "admin": 2}


@dataclass(frozen=True)
class Caller:
    """The holder of a key. `collections` empty: all of them."""

    key_id: str
    role: Role
    name: str = ""
    collections: tuple[str, ...] = ()

    @property
    def signature(self) -> str:
        """How the record calls them."""
        return self.name or self.key_id

    def may(self, role: Role) -> bool:
        return RANK[self.role] >= RANK[role]

    def check(self, collection: str) -> None:
        """Raises Forbidden where the key is bound to other collections."""
        if self.collections and collection not in self.collections:
            raise Forbidden(f"this key is not for collection {collection!r}")
