"""Where a collection's faces lie under a model that there is, or one fitted for a draw on its training side alone."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import select

from app.db.session import reading, snapshot
from app.db.tables import Embedding, Face, Training
from app.learning.evaluation_request import EvaluationRequest
from app.learning.plan import Plan
from app.learning.plan_checks import make_plan
from ml.distances import Distance
from ml.embedders.base import Embedder, TaskData, TrainingSet
from ml.evaluation.protocols import Protocol
from ml.model import Model, Recipe
from ml.types import Rows
from workers.context import JobContext
from workers.description import batches, describe
from workers.evaluating.dataset import Entrant, Entrants
from workers.training import embedder_fit, vocabularies
from workers.training import training_data as snapshots
from workers.training.progress import WHOLE, Telling

DESCRIBED = 200  # of the thousand steps of the bar
CHUNK = 2048


@dataclass(frozen=True, eq=False)
class Placed:
    """Where the gallery lies under one draw's model. place: the same for other faces; seconds: what it took."""

    rows: Rows
    metric: Distance
    place: Callable[[Sequence[Entrant]], Rows]
    seconds: dict[str, float]


def of_model(context: JobContext, asked: EvaluationRequest, taking_part: Entrants) -> Placed:
    generation = context.resources.generations.get(str(asked.model))
    start = time.perf_counter()

    def place(faces: Sequence[Entrant]) -> Rows:
        return stored(context, generation, asked.task, faces)

    rows = place(taking_part.gallery)
    return Placed(rows, generation.metric, place, {"embed_seconds": time.perf_counter() - start})


class Bench:
    """Descriptors of all faces, gathered once; a model fitted for each draw, on its training side alone."""

    def __init__(self, context: JobContext, asked: EvaluationRequest, taking_part: Entrants, told: Telling) -> None:
        self.context, self.asked, self.entrants, self.told = context, asked, taking_part, told
        with snapshot(context.resources.database) as session:
            self.plan: Plan = make_plan(session, context.resources.settings, asked.training_request())
            at = snapshots.taken(session, Training(snapshot={}), self.plan)
            self.known = snapshots.read(session, self.plan, at)
        place = {face.pk: i for i, face in enumerate(self.known.faces)}
        self.at = np.array([place[e.pk] for e in taking_part.gallery], np.int64)
        self.foreign = np.array([f.collection_id != asked.collection for f in self.known.faces], np.bool_)
        self.plan = vocabularies.settled(context, self.plan, self.known.faces, told.phase("vocabulary", 0, 20))
        gather = told.phase("describe", 20, DESCRIBED)
        self.rows = describe(
            context.resources, self.recipe, self.known.faces, context, lambda done, total: gather(done, total, {})
        )

    @property
    def recipe(self) -> Recipe:
        return self.plan.recipe

    def fitted(self, protocol: Protocol, draw: int, draws: int) -> Placed:
        """Raises TooFewPairs, and whatever the progress raises."""
        first, last = (DESCRIBED + (WHOLE - DESCRIBED) * i // draws for i in (draw, draw + 1))
        start = time.perf_counter()
        data = self._restricted(protocol) if self.asked.setting == "restricted" else self._unrestricted(protocol)
        embedder = embedder_fit.fit(self.plan, data, self.told.phase(f"fit {draw}", first, last), before=None)
        fitted = time.perf_counter()
        rows = self._embed(embedder)
        seconds = {"fit_seconds": fitted - start, "embed_seconds": time.perf_counter() - fitted}

        def place(faces: Sequence[Entrant]) -> Rows:
            parts = batches(self.context.resources, self.recipe, faces, self.context)
            return np.concatenate([embedder.embed(part, self.asked.task) for part in parts])

        return Placed(rows, embedder.metric, place, seconds)

    def _unrestricted(self, protocol: Protocol) -> TrainingSet:
        kept = self.foreign.copy()
        kept[self.at[protocol.training]] = True
        return embedder_fit.training_set(self.plan, self.known, self.rows, kept)

    def _restricted(self, protocol: Protocol) -> TrainingSet:
        """The training folds' pairs and nothing else: who is on the photos is not told."""
        pairs = protocol.training_pairs
        photos, at = np.unique(pairs.index, return_inverse=True)
        at = at.reshape(-1, 2)
        nobody, weights = np.full(len(photos), np.nan), np.ones(len(at), np.float32)
        told = TaskData(
            self.asked.task, np.arange(len(photos)), nobody, pairs.groups(), pairs=at, same=pairs.same, weights=weights
        )
        return TrainingSet(self.rows[self.at[photos]], (told,), self.recipe.blocks)

    def _embed(self, embedder: Embedder) -> Rows:
        """In pieces, so that the descriptors are not held twice."""
        pieces = range(0, len(self.at), CHUNK)
        return np.concatenate([embedder.embed(self.rows[self.at[i : i + CHUNK]], self.asked.task) for i in pieces])


def stored(context: JobContext, generation: Model, task: str, faces: Sequence[Entrant] | Sequence[Face]) -> Rows:
    """Where these faces lie: from the tables where they hold it, else from the crops."""
    parts = []
    for start in range(0, len(faces), CHUNK):
        context.check()
        part = faces[start : start + CHUNK]
        held = select(Embedding.face_pk, Embedding.vector).where(
            Embedding.model_id == generation.id, Embedding.task == task
        )
        with reading(context.resources.database) as session:
            rows = session.execute(held.where(Embedding.face_pk.in_([f.pk for f in part])))
            known = {row.face_pk: row.vector for row in rows}
        missing = [f for f in part if f.pk not in known]
        fresh = generation.embed(describe(context.resources, generation.recipe, missing, context), task)
        found = {f.pk: row for f, row in zip(missing, fresh, strict=True)}
        found |= {pk: np.frombuffer(vector, "<f4") for pk, vector in known.items()}
        parts.append(np.stack([found[f.pk] for f in part]))
    return np.concatenate(parts)
