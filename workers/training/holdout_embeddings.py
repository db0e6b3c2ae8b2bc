"""The embeddings of the faces on which a candidate is measured, under the models that are compared."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ml.embedder_training.task_measurement import HoldoutEmbeddings
from ml.embedders.base import Embedder
from ml.model import Recipe
from workers.context import JobContext
from workers.description import describe_faces
from workers.training.prepared_data import PreparedData


@dataclass(frozen=True, eq=False)
class ModelUnderTest:
    """A model to be measured in some of its tasks."""

    recipe: Recipe
    embedder: Embedder
    tasks: tuple[str, ...]


def embed_holdout_faces(
    context: JobContext, prepared: PreparedData, models: Sequence[ModelUnderTest]
) -> list[dict[str, HoldoutEmbeddings]]:
    """Return the embeddings under each model, for each of its tasks. The faces are described once for each recipe.

    Raises CropsDamaged, ml.Corrupt, Interrupted.
    """
    data, embedded = prepared.data, dict[int, dict[str, HoldoutEmbeddings]]()
    labelled = [examples.pairs.ravel() for examples in data.tasks]
    indices = np.unique(np.concatenate([np.flatnonzero(prepared.held_out), *labelled]))
    keys = [model.recipe.keys for model in models]
    for key in dict.fromkeys(keys):
        is_described = key == prepared.plan.recipe.keys
        missing = [] if is_described else [data.faces[i] for i in indices]
        described = describe_faces(context, models[keys.index(key)].recipe, [*missing, *data.distractors])
        faces = prepared.rows[indices] if is_described else described[: len(indices)]
        distractors = described[len(missing) :]
        for number, model in enumerate(models):
            if keys[number] == key:
                embed, metric = model.embedder.embed, model.embedder.metric
                embedded[number] = {
                    task: HoldoutEmbeddings(metric, indices, embed(faces, task), embed(distractors, task))
                    for task in model.tasks
                }
    return [embedded[number] for number in range(len(models))]
