"""What a descriptor must learn from crops before it can describe any: learned once for the service, then kept."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.learning.plan import Named, Plan
from ml import registry
from workers.context import JobContext
from workers.description import StoredFace, crops

ENOUGH = 1000
"""Crops that a vocabulary is learned from at most."""
GROWN = 4
"""One that was learned from few is learned anew where there are so many times as many by now."""


def settled(context: JobContext, plan: Plan, faces: Sequence[StoredFace], told: Any) -> Plan:
    """The plan with vocabularies for the descriptors that lack theirs: the service's own, or one learned from some of
    these faces, which is the service's from now on. told: a phase of the job. Raises NotFound, TooFewPairs."""
    described = []
    for number, named in enumerate(plan.descriptors):
        described.append(_with_vocabulary(context, named, faces, plan.seed) if named.unlearned else named)
        told(number + 1, len(plan.descriptors), {})
    return plan.model_copy(update={"descriptors": tuple(described)})


def _with_vocabulary(context: JobContext, named: Named, faces: Sequence[StoredFace], seed: int) -> Named:
    folder = context.resources.settings.home / "vocabularies"
    noted = folder / f"{named.name}.json"
    count = min(len(faces), ENOUGH)
    kept: dict[str, Any] = json.loads(noted.read_text()) if noted.is_file() else {"faces": 0}
    if count >= max(1, GROWN * kept["faces"]):
        kept = {"faces": count, "options": _learned(context, named.name, folder, _some(faces, count, seed), seed)}
        part = noted.with_suffix(".part")
        part.write_text(json.dumps(kept))
        part.replace(noted)
    return Named(name=named.name, options=named.options | kept["options"])


def _learned(context: JobContext, name: str, folder: Path, faces: Sequence[StoredFace], seed: int) -> dict[str, Any]:
    component = registry.component("descriptors", name)
    seen = crops(context.resources.blobs, faces, [component.crop])[component.crop]
    found: dict[str, Any] = component.learn(seen, folder, seed)
    return found


def _some(faces: Sequence[StoredFace], count: int, seed: int) -> list[StoredFace]:
    chosen = np.random.default_rng((seed, 5)).permutation(len(faces))[:count]
    return [faces[i] for i in np.sort(chosen).tolist()]
