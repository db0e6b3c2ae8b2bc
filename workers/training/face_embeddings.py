"""Embed the same faces with several models: the faces are described once for each recipe."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ml.embedders.base import Embedder
from ml.model import Recipe
from ml.types import Ids, Rows
from workers.training.training_data import FaceRecord, TrainingData

Describe = Callable[[Recipe, Sequence[FaceRecord]], Rows]


@dataclass(frozen=True, eq=False)
class ModelUnderTest:
    """A model to be measured."""

    recipe: Recipe
    embedder: Embedder


@dataclass(frozen=True, eq=False)
class TaskEmbeddings:
    """Embeddings for one task: (n, d) of the measured faces, (m, d) of the distractors."""

    faces: Rows
    distractors: Rows


@dataclass(eq=False)
class HoldoutFaces:
    """The faces on which models are measured.

    indices: (n,) of the measured faces in the training data, rising; all its distractors are measured too
    descriptors: (N, D) of every face of the training data under `recipe`, which is the candidate's
    """

    data: TrainingData
    indices: Ids
    recipe: Recipe
    descriptors: Rows
    describe: Describe
    _described: dict[tuple[object, ...], tuple[Rows, Rows]] = field(default_factory=dict)

    def embed(self, model: ModelUnderTest, task: str) -> TaskEmbeddings:
        """Embed the faces and the distractors. Raises whatever `describe` raises."""
        faces, distractors = self._describe_once(model.recipe)
        return TaskEmbeddings(model.embedder.embed(faces, task), model.embedder.embed(distractors, task))

    def positions(self, indices: Ids) -> Ids:
        """Return the rows of the embeddings that belong to these indices of the training data."""
        return np.searchsorted(self.indices, indices)

    def _describe_once(self, recipe: Recipe) -> tuple[Rows, Rows]:
        key = tuple((s.name, repr(sorted(s.options.items()))) for s in recipe.descriptors)
        if key not in self._described:
            if recipe.descriptors == self.recipe.descriptors:
                faces = self.descriptors[self.indices]
            else:
                faces = self.describe(recipe, [self.data.faces[i] for i in self.indices])
            self._described = {key: (faces, self.describe(recipe, self.data.distractors))}
        return self._described[key]
