"""Files that are not ours to ship: fetched from their official address, pinned by their SHA-256."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path

import httpx
import typer

from app.cli.client import print_problem
from ml.files import hash_bytes, hash_file


@dataclass(frozen=True)
class PinnedFile:
    """url: the official address; sha256: of the file, hex"""

    url: str
    sha256: str


def read_pinned(pinned: PinnedFile, file: Path | None, quiet: bool) -> bytes | None:
    """The bytes, from `file` or else from the network; None where there is no network and it is to be quiet.

    Exits with a sentence where they cannot be had or are not the file that is pinned.
    """
    try:
        data = file.read_bytes() if file else _fetch(pinned.url)
    except httpx.HTTPError as error:
        if quiet:
            return None
        print_problem("not fetched", f"{error}. Fetch {pinned.url} elsewhere and give it with --file")
        raise typer.Exit(1) from error
    digest = hash_bytes(data)
    if digest != pinned.sha256:
        print_problem(
            "refused",
            f"{file or pinned.url} ({len(data):,} bytes) has SHA-256 {digest}, not {pinned.sha256}: it is truncated or "
            "a different file",
        )
        raise typer.Exit(0 if quiet else 1)
    return data


def is_pinned(path: Path, pinned: PinnedFile) -> bool:
    """Whether the file is there and is the right one."""
    return path.is_file() and hash_file(path) == pinned.sha256


def moved(command: Callable[..., None], new: str) -> Callable[..., None]:
    """The same command under its old name, which says on the error output where it went."""

    @wraps(command)
    def run(*args: object, **options: object) -> None:
        typer.echo(f"this command is now `likeness {new}`", err=True)
        command(*args, **options)

    return run


def _fetch(url: str) -> bytes:
    answer = httpx.get(url, follow_redirects=True, timeout=httpx.Timeout(30, connect=4))
    return answer.raise_for_status().content
