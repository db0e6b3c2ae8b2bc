"""What a parser process is asked to do, under which limits."""

import json
from dataclasses import asdict, dataclass
from typing import Literal, Self

from app.enrolment.archives.entries import ArchiveLimits, Entry

Task = Literal["unpack", "list", "manifest", "read"]


@dataclass(frozen=True)
class ParserRequest:
    """A task and its limits.

    entries: those that "manifest" and "read" read; target: the file that "unpack" writes; memory_bytes, cpu_seconds,
    file_bytes: limits of the process, the last one of `target`
    """

    task: Task
    path: str
    limits: ArchiveLimits
    memory_bytes: int
    cpu_seconds: int
    file_bytes: int = 0
    target: str = ""
    entries: tuple[Entry, ...] = ()

    def encode(self) -> bytes:
        """Return the request as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the request that `encode` has written."""
        values = json.loads(data)
        entries = [Entry(**{**entry, "location": tuple(entry["location"])}) for entry in values["entries"]]
        return cls(**{**values, "limits": ArchiveLimits(**values["limits"]), "entries": tuple(entries)})
