"""Files of the home that descriptors name by a path: the manifests of recognisers, and vocabularies.

The path on record is that of the home in which a model was made; after a restore the files are in another home. A
vocabulary is `<home>/vocabularies/<SHA-256 of the file>.safetensors`, and a descriptor that reads it has the hash as
its pin.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.storage.recognisers.manifests import FOLDER, MANIFEST
from ml.model import Recipe

VOCABULARIES = "vocabularies"
VOCABULARY_FILE = re.compile(r"[0-9a-f]{64}\.safetensors")


def find_recipe_files(recipe: Recipe, home: Path) -> Recipe:
    """Return the same recipe with the paths at which this home has the files of its descriptors."""
    return Recipe(tuple(replace(spec, options=find_files(spec.options, home)) for spec in recipe.descriptors))


def find_descriptor_files(manifest: Mapping[str, Any], home: Path) -> list[dict[str, Any]]:
    """Return the descriptors in the manifest of a model, with the paths at which this home has their files."""
    return [{**one, "options": find_files(one.get("options", {}), home)} for one in manifest["descriptors"]]


def find_files(options: Mapping[str, Any], home: Path) -> dict[str, Any]:
    """Return the options of a descriptor with the paths at which this home has its files.

    A manifest that is still at the path on record stays there, and so does a file that this home does not have.
    The descriptor compares each file with the pin in its options.
    """
    return {**options, **_find_manifest(options, home), **_find_vocabulary(options, home)}


def _find_manifest(options: Mapping[str, Any], home: Path) -> dict[str, str]:
    if "manifest" not in options:
        return {}
    recorded = Path(str(options["manifest"]))
    here = home.resolve() / FOLDER / recorded.parent.name / MANIFEST
    return {"manifest": str(here)} if not recorded.is_file() and here.is_file() else {}


def _find_vocabulary(options: Mapping[str, Any], home: Path) -> dict[str, str]:
    name = _name_vocabulary(options)
    here = home / VOCABULARIES / (name or "")
    return {"vocabulary": str(here)} if name is not None and here.is_file() else {}


def list_vocabularies(manifests: Iterable[Mapping[str, Any]]) -> dict[str, Path]:
    """Return the vocabularies that models need: name of the file -> path on record.

    manifests: of the models
    """
    options = [descriptor.get("options", {}) for manifest in manifests for descriptor in manifest["descriptors"]]
    return {name: Path(str(one["vocabulary"])) for one in options if (name := _name_vocabulary(one)) is not None}


def _name_vocabulary(options: Mapping[str, Any]) -> str | None:
    """Return the name of the vocabulary's file; None if the options name no vocabulary, or one without a pin."""
    name = f"{options.get('pin')}.safetensors"
    return name if options.get("vocabulary") and VOCABULARY_FILE.fullmatch(name) else None
