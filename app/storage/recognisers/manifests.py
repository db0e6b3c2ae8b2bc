"""Recognisers that an operator registered: in the settings, or as folders of the service's home.

`<home>/recognisers/<name>/` holds `manifest.json`, the model's file and `card.json`. It appears whole, by one rename,
so that a running service and its workers see it without a restart.
"""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from app.config import Settings
from app.errors import Conflict, Invalid
from ml import registry
from ml.descriptors.common.file_backed import find_descriptor
from ml.files import hash_file, move_folder, parse_json

FOLDER, MANIFEST, CARD = "recognisers", "manifest.json", "card.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
PULLED = ("sface",)
"""Names of recognisers that `pull` fetches."""


@dataclass(frozen=True)
class Registered:
    """A recogniser that an operator registered.

    manifest: path of the manifest beside its model file
    card: what the manifest leaves out (source, accuracy)
    """

    name: str
    manifest: Path
    card: dict[str, Any] = field(default_factory=dict)

    @property
    def descriptor(self) -> str:
        """The name of the descriptor that runs it, which the manifest says. Raises Unavailable, Corrupt."""
        return find_descriptor(self.manifest)


def list_registered(settings: Settings) -> dict[str, Registered]:
    """By name; what the settings name comes before what lies in the home."""
    named = {name: Registered(name, manifest) for name, manifest in settings.descriptor_manifests.items()}
    folder = settings.home / FOLDER
    for manifest in sorted(folder.glob(f"[!.]*/{MANIFEST}")):
        name, card = manifest.parent.name, _read_card(manifest.parent / CARD)
        named.setdefault(name, Registered(name, manifest.resolve(), card))
    return named


def _read_card(path: Path) -> dict[str, Any]:
    try:
        card = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}  # the manifest alone is enough to run it
    return card if isinstance(card, dict) else {}


def check_name(settings: Settings, name: str, *, pulled: bool = False) -> None:
    """Raises Invalid (not a name), Conflict (taken by the settings or by a descriptor of our own)."""
    if not NAME.fullmatch(name):
        raise Invalid(f"{name!r} is no name: 1 to 64 letters, digits, '_', '-' and '.', and no '.' in front")
    if name in registry.names("descriptors") or (name in PULLED and not pulled):
        raise Conflict(f"the name {name} is taken by a recogniser that Likeness knows; choose another with --name")
    if name in settings.descriptor_manifests:
        raise Conflict(f"the name {name} is taken by the settings; choose another with --name")


@contextmanager
def staging_folder(settings: Settings) -> Iterator[Path]:
    """An empty folder in the home in which to prepare a recogniser; removed in the end unless it was registered."""
    part = settings.home / FOLDER / f".{uuid4().hex}"
    part.mkdir(parents=True)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def register(settings: Settings, name: str, staged: Path, card: dict[str, Any]) -> Path:
    """Move a staged folder (manifest and model) to its name. The same manifest again changes nothing.

    Returns the manifest's path. Raises Conflict where the name belongs to another recogniser: a model that serves may
    stand on it.
    """
    final = settings.home / FOLDER / name
    if (final / MANIFEST).is_file():
        return _same_or_conflict(final, staged)
    (staged / CARD).write_text(json.dumps(card, indent=1))
    try:
        move_folder(staged, final)
    except OSError:  # another process was faster
        return _same_or_conflict(final, staged)
    return final / MANIFEST


def _same_or_conflict(final: Path, staged: Path) -> Path:
    if not (final / MANIFEST).is_file() or hash_file(final / MANIFEST) != hash_file(staged / MANIFEST):
        raise Conflict(
            f"another recogniser is registered as {final.name}, and models may stand on it; choose another with --name"
        )
    return final / MANIFEST
