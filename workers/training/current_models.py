"""The models that serve, which a candidate is compared with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.db.session import reading
from app.db.tables import Deployment
from workers.context import JobContext
from workers.training.exposure import find_learned_faces, trace_exposure
from workers.training.holdout_embeddings import ModelUnderTest
from workers.training.prepared_data import PreparedData


@dataclass(frozen=True, eq=False)
class CurrentModel:
    """The champion of some tasks.

    under_test: the champion, or its holdout model if the champion has learned from the training's collections
    seen: how many held-out people it may have learned from
    """

    champion: str
    under_test: ModelUnderTest
    seen: int


def load_current_models(context: JobContext, prepared: PreparedData, tasks: Sequence[str]) -> list[CurrentModel]:
    """Load each champion of these tasks. Raises NotFound, ml.Corrupt, ml.Unavailable."""
    plan, data = prepared.plan, prepared.data
    with reading(context.resources.database) as session:
        tasks_of: dict[str, list[str]] = {}
        for task in tasks:
            deployment = session.get(Deployment, (plan.collection, task))
            if deployment is not None:
                tasks_of.setdefault(deployment.champion, []).append(task)
        current_models = []
        for champion, served in tasks_of.items():
            exposure = trace_exposure(session, context.resources.models, champion, plan.collections)
            learned = find_learned_faces(session, context.resources.installation_key, exposure, data)
            seen = len(np.unique(data.people[learned & prepared.held_out]))
            model = exposure.measured_as
            under_test = ModelUnderTest(model.recipe, model.embedder, tuple(served))
            current_models.append(CurrentModel(champion, under_test, seen))
    return current_models
