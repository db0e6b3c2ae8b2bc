"""Find the descriptors that run a model file of the operator; their classes declare its manifest."""

from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path

from ml import registry
from ml.descriptors.common.manifest import DescriptorManifest
from ml.errors import Corrupt, Unavailable
from ml.files import parse_json


@lru_cache(maxsize=1)
def manifest_types() -> dict[str, type[DescriptorManifest]]:
    """Return the manifest class of each descriptor that needs a model file, by the descriptor's name."""
    types = ((name, registry.component("descriptors", name).manifest_type) for name in registry.names("descriptors"))
    return {name: manifest_type for name, manifest_type in types if manifest_type is not None}


def find_descriptor(manifest: Path) -> str:
    """Return the name of the descriptor whose manifest agrees best with the fields of this file.

    Raises Unavailable if there is no such file, Corrupt if it cannot be read or holds no JSON object.
    """
    if not manifest.is_file():
        raise Unavailable(f"no manifest at {manifest}; docs/use/recognisers.md describes how to write one")
    try:
        present = parse_json(manifest.read_bytes()).keys()
    except (OSError, ValueError, AttributeError) as error:
        raise Corrupt(f"{manifest.name} is not a manifest: {error}") from error
    types = manifest_types()

    def count_agreements(name: str) -> int:
        known = {field.name for field in fields(types[name])}
        required = {field.name for field in fields(types[name]) if field.default is MISSING}
        return len(present & known) - len(required - present)

    return max(types, key=count_agreements)


def read_manifest(path: Path) -> DescriptorManifest:
    """Read a manifest, as the descriptor to which it belongs does. Raises Unavailable, Corrupt."""
    return manifest_types()[find_descriptor(path)].read(path)
