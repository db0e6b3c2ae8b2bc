"""The process that parses one archive. It may die, of one of its limits or of a fault in a parser.

It reads a `ParserRequest` from its standard input, and writes messages to its standard output, each a line of JSON:

    {"entries": [[name, size, packed, location], ...]}    of the task "list"
    {"rows": [{...}, ...]}                                of the task "manifest"
    {"photo_bytes": count}, then the bytes                of the task "read", for each entry in its turn, or
    {"unreadable": [code, detail]}                        if it cannot be read
    {"alive": true}                                       of the task "unpack", now and then

The last message is `{"end": true}`, or why there is no more: `{"refused": [class, detail, code]}`,
`{"memory": true}`, `{"disk": errno}` or `{"crash": traceback}`.
"""

import json
import resource
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from app.enrolment.archives.entries import filter_entries
from app.enrolment.archives.formats import open_parser
from app.enrolment.archives.gzips import unpack_gzip
from app.enrolment.archives.manifest_rows import read_manifest_rows
from app.enrolment.archives.parser_request import ParserRequest
from app.errors import AppError
from ml.errors import Unreadable

MESSAGE_CHARACTERS = 2**18
MAX_OPEN_FILES = 16
GRACE_SECONDS = 5
"""Seconds of processor time over the limit after which the process cannot but end."""


def main() -> None:
    """Do what the request on the standard input says, under its limits."""
    request = ParserRequest.decode(sys.stdin.buffer.read())
    try:
        apply_limits(request)
        perform(request)
    except AppError as error:
        write_message({"refused": [type(error).__name__, error.detail, error.code]})
    except MemoryError:
        write_message({"memory": True})
    except OSError as error:
        write_message({"disk": error.errno})
    except Exception:
        write_message({"crash": traceback.format_exc()})
    else:
        write_message({"end": True})


def apply_limits(request: ParserRequest) -> None:
    """Limit this process for good: its memory, its processor time, its open files and the file that it writes."""
    limits = {
        resource.RLIMIT_CPU: (request.cpu_seconds, request.cpu_seconds + GRACE_SECONDS),
        resource.RLIMIT_NOFILE: (MAX_OPEN_FILES, MAX_OPEN_FILES),
        resource.RLIMIT_FSIZE: (request.file_bytes, request.file_bytes),
        resource.RLIMIT_CORE: (0, 0),
    }
    if sys.platform == "linux":  # elsewhere it cannot be lowered
        limits[resource.RLIMIT_AS] = (request.memory_bytes, request.memory_bytes)
    for kind, values in limits.items():
        _, allowed = resource.getrlimit(kind)
        soft, hard = (value if allowed == resource.RLIM_INFINITY else min(value, allowed) for value in values)
        resource.setrlimit(kind, (soft, hard))


def perform(request: ParserRequest) -> None:
    """Do the task and write its messages. Raises Invalid, TooLarge, NotFound, OSError."""
    path = Path(request.path)
    if request.task == "unpack":
        unpack_gzip(path, Path(request.target), request.file_bytes, lambda: write_message({"alive": True}))
        return
    archive = open_parser(path)
    if request.task == "list":
        entries = filter_entries(archive, request.limits)
        write_batches("entries", ((e.name, e.size, e.packed, e.location) for e in entries))
    elif request.task == "manifest":
        write_batches("rows", read_manifest_rows(archive, request.entries[0], request.limits.entries))
    else:
        for entry in request.entries:
            try:
                write_photo(archive.read(entry, request.limits.photo))
            except Unreadable as error:
                write_message({"unreadable": [error.code, str(error)]})


def write_batches(name: str, items: Iterable[Any]) -> None:
    """Write items as messages of about MESSAGE_CHARACTERS."""
    batch: list[Any] = []
    characters = 0
    for item in items:
        batch.append(item)
        characters += len(json.dumps(item))
        if characters >= MESSAGE_CHARACTERS:
            write_message({name: batch})
            batch, characters = [], 0
    if batch:
        write_message({name: batch})


def write_photo(data: bytes) -> None:
    write_message({"photo_bytes": len(data)}, data)


def write_message(message: dict[str, Any], data: bytes = b"") -> None:
    """Write one message at once, with the bytes that follow it."""
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
