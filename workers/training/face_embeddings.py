"""Where faces lie under one model or another: described once for each recipe, embedded by each model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ml.embedders.base import Embedder
from ml.model import Recipe
from ml.types import Ids, Rows
from workers.training.training_data import Snapshot, Told

Describe = Callable[[Recipe, Sequence[Told]], Rows]


@dataclass(frozen=True, eq=False)
class Contestant:
    """A model to be measured."""

    recipe: Recipe
    embedder: Embedder


@dataclass(frozen=True, eq=False)
class Placed:
    """Embeddings for one task: of the faces of the bench, and of the distractors."""

    faces: Rows
    distractors: Rows


@dataclass(eq=False)
class Bench:
    """The faces that models are measured on: places (n,) of the snapshot, rising, and all its distractors.

    known: descriptors of every face of the snapshot under the recipe that is being trained.
    """

    snapshot: Snapshot
    places: Ids
    recipe: Recipe
    known: Rows
    describe: Describe
    _described: dict[tuple[object, ...], tuple[Rows, Rows]] = field(default_factory=dict)

    def embed(self, model: Contestant, task: str) -> Placed:
        faces, distractors = self._rows(model.recipe)
        return Placed(model.embedder.embed(faces, task), model.embedder.embed(distractors, task))

    def place(self, places: Ids) -> Ids:
        """Where these places of the snapshot stand on the bench."""
        return np.searchsorted(self.places, places)

    def _rows(self, recipe: Recipe) -> tuple[Rows, Rows]:
        key = tuple((s.name, repr(sorted(s.options.items()))) for s in recipe.descriptors)
        if key not in self._described:
            if recipe.descriptors == self.recipe.descriptors:
                faces = self.known[self.places]
            else:
                faces = self.describe(recipe, [self.snapshot.faces[i] for i in self.places])
            self._described = {key: (faces, self.describe(recipe, self.snapshot.distractors))}
        return self._described[key]
