"""The caller of a request: the holder of its key, with a role and collections."""

from dataclasses import dataclass
from typing import Literal

from app.errors import Forbidden

Role = Literal["reader", "operator", "admin"]
RANK: dict[str, int] = {"reader": 0, "operator": 1, "admin": 2}


@dataclass(frozen=True)
class Caller:
    """The holder of a key. collections: empty means all"""

    key_id: str
    role: Role
    name: str = ""
    collections: tuple[str, ...] = ()

    @property
    def signature(self) -> str:
        """The name under which the caller is recorded: the key's name, or its id."""
        return self.name or self.key_id

    def may(self, role: Role) -> bool:
        """Whether the caller has this role or a higher one."""
        return RANK[self.role] >= RANK[role]

    def check(self, collection: str) -> None:
        """Raises Forbidden if the key is bound to other collections."""
        if self.collections and collection not in self.collections:
            raise Forbidden(f"this key is not for collection {collection!r}")
