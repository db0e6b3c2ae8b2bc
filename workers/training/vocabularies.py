"""Learn the vocabularies of descriptors from crops. A vocabulary is kept and serves every training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.learning.plan import ComponentChoice, Plan
from app.storage.recognisers.component_files import VOCABULARIES, find_files
from app.storage.stored_faces import StoredFace, read_crops
from ml import registry
from ml.embedders.base import Progress
from ml.files import atomic_write
from workers.context import JobContext

MAX_VOCABULARY_CROPS = 1000
RELEARN_FACTOR = 4
"""A vocabulary is learned again once so many times as many crops are available as it was learned from."""


def learn_vocabularies(context: JobContext, plan: Plan, faces: Sequence[StoredFace], on_progress: Progress) -> Plan:
    """Return the plan with a vocabulary for each descriptor that needs one.

    This is the kept vocabulary, or one that is learned from some of these faces and then kept.
    Raises CropsDamaged, TooFewPairs, and whatever the progress raises.
    """
    descriptors = []
    for number, choice in enumerate(plan.descriptors, 1):
        needs_one = choice.needs_vocabulary
        descriptors.append(_add_vocabulary(context, choice, faces, plan.seed) if needs_one else choice)
        on_progress(number, len(plan.descriptors), {})
    return plan.model_copy(update={"descriptors": tuple(descriptors)})


def _add_vocabulary(
    context: JobContext, choice: ComponentChoice, faces: Sequence[StoredFace], seed: int
) -> ComponentChoice:
    home = context.resources.settings.home
    folder = home / VOCABULARIES
    record = folder / f"{choice.name}.json"
    count = min(len(faces), MAX_VOCABULARY_CROPS)
    kept: dict[str, Any] = json.loads(record.read_text()) if record.is_file() else {"faces": 0}
    if count >= max(1, RELEARN_FACTOR * kept["faces"]):
        sample = _sample_faces(faces, count, seed)
        kept = {"faces": count, "options": _learn(context, choice.name, folder, sample, seed)}
        with atomic_write(record) as file:
            file.write(json.dumps(kept).encode())
    return ComponentChoice(name=choice.name, options=choice.options | find_files(kept["options"], home))


def _learn(context: JobContext, name: str, folder: Path, faces: Sequence[StoredFace], seed: int) -> dict[str, Any]:
    component = registry.component("descriptors", name)
    crops = read_crops(context.resources.blobs, faces, component.crop)
    options: dict[str, Any] = component.learn(crops, folder, seed)
    return options


def _sample_faces(faces: Sequence[StoredFace], count: int, seed: int) -> list[StoredFace]:
    chosen = np.random.default_rng((seed, 5)).permutation(len(faces))[:count]
    return [faces[i] for i in np.sort(chosen).tolist()]
