"""Entries of the audit log before they have a place in its chain, and the names under which they record resources."""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import orjson

from app.db.tables import new_id, now
from app.storage.installation_key import InstallationKey

GENERATED_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{24}|[0-9]{1,19}")
"""What the service makes for faces, for other rows and for clusters. A client's name for a face is none."""
CHOSEN_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
NAMED_KINDS = ("model", "task")
"""Their names are chosen by administrators or built in."""
COLLECTION = re.compile(r"[A-Za-z0-9_.-]{1,255}")
HASH_CHARACTERS = 32


class EntryDraft(NamedTuple):
    """An entry without number and MAC.

    key_id: None if a command or the service itself acted; status: that of the answer, None if there was none
    """

    id: str
    at: float
    action: str
    key_id: str | None = None
    address: str | None = None
    collection: str | None = None
    resource: str | None = None
    status: int | None = None

    @classmethod
    def make(cls, action: str, **values: Any) -> Self:
        """Return a draft of something that happens now."""
        return cls(new_id(), now(), action, **values)

    def encode(self) -> bytes:
        """Encode the draft as one line of JSON."""
        try:
            return orjson.dumps(tuple(self), option=orjson.OPT_APPEND_NEWLINE)
        except orjson.JSONEncodeError:  # half of a surrogate pair, which the json module escapes
            return json.dumps(self).encode() + b"\n"

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Decode a line. Raises ValueError or TypeError if it is damaged, or holds text that no database stores."""
        draft = cls(*json.loads(encoded))
        if any("\0" in text or not _is_unicode(text) for text in draft if isinstance(text, str)):
            raise ValueError("a text has a NUL or half of a surrogate pair")
        return draft


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class ResourceNames:
    """Names of resources for entries: ids that the service makes, models and tasks as they are, others as a hash."""

    def __init__(self, key: InstallationKey) -> None:
        self._key = key

    def name_subject(self, collection: str, subject: str) -> str:
        """Return the name of a subject, from which nobody without the key of the installation learns its id."""
        return self._hash("subject", f"{collection}\0{subject}")

    def name_path(self, params: Mapping[str, Any]) -> str | None:
        """Return the name of what a path ends in, `kind:id`; None if it names nothing below a collection."""
        names = [name for name in params if name != "collection"]
        if not names:
            return None
        kind, value = names[-1].removesuffix("_id"), str(params[names[-1]])
        kind = "task" if kind == "name" else kind
        if kind == "subject":
            return self.name_subject(str(params.get("collection", "")), value)
        shown = CHOSEN_NAME if kind in NAMED_KINDS else GENERATED_ID
        return f"{kind}:{value}" if shown.fullmatch(value) else self._hash(kind, value)

    def _hash(self, kind: str, text: str) -> str:
        digest = self._key.hash_bytes("audit name", text.encode("utf-8", "surrogatepass"))
        return f"{kind}:#{digest.hex()[:HASH_CHARACTERS]}"


def check_collection(name: object) -> str | None:
    """Return the name of a collection; None for what cannot be one."""
    return name if isinstance(name, str) and COLLECTION.fullmatch(name) else None
