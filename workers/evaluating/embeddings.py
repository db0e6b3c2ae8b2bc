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
from workers.description import describe_faces, describe_in_batches
from workers.evaluating.dataset import EvaluationFace, EvaluationSet
from workers.progress import PROGRESS_STEPS, ProgressReporter
from workers.training import fit, vocabularies
from workers.training import training_data as snapshots
from workers.training.training_set import make_training_set

DESCRIBE_END = 200  # of the thousand steps of the bar
FACES_PER_CHUNK = 2048


@dataclass(frozen=True, eq=False)
class GalleryEmbeddings:
    """Where the gallery lies under one draw's model. place: the same for other faces; seconds: what it took."""

    rows: Rows
    metric: Distance
    embed: Callable[[Sequence[EvaluationFace]], Rows]
    seconds: dict[str, float]


def embed_with_model(
    context: JobContext, request: EvaluationRequest, evaluation_set: EvaluationSet
) -> GalleryEmbeddings:
    model = context.resources.models.get(str(request.model))
    start = time.perf_counter()

    def embed(faces: Sequence[EvaluationFace]) -> Rows:
        return read_embeddings(context, model, request.task, faces)

    rows = embed(evaluation_set.gallery)
    return GalleryEmbeddings(rows, model.metric, embed, {"embed_seconds": time.perf_counter() - start})


class DrawFitter:
    """Descriptors of all faces, gathered once; a model fitted for each draw, on its training side alone."""

    def __init__(
        self, context: JobContext, request: EvaluationRequest, evaluation_set: EvaluationSet, reporter: ProgressReporter
    ) -> None:
        self.context, self.asked, self.entrants, self.told = context, request, evaluation_set, reporter
        with snapshot(context.resources.database) as session:
            self.plan: Plan = make_plan(session, context.resources.settings, request.training_request())
            at = snapshots.record_snapshot(session, Training(snapshot={}), self.plan)
            self.known = snapshots.read_training_data(session, self.plan, at)
        embed = {face.pk: i for i, face in enumerate(self.known.faces)}
        self.at = np.array([embed[e.pk] for e in evaluation_set.gallery], np.int64)
        self.foreign = np.array([f.collection_id != request.collection for f in self.known.faces], np.bool_)
        self.plan = vocabularies.learn_vocabularies(
            context, self.plan, self.known.faces, reporter.phase("vocabulary", 0, 20)
        )
        progress = reporter.phase("describe", 20, DESCRIBE_END)
        self.rows = describe_faces(context, self.recipe, self.known.faces, progress)

    @property
    def recipe(self) -> Recipe:
        return self.plan.recipe

    def fitted(self, protocol: Protocol, draw: int, draws: int) -> GalleryEmbeddings:
        """Raises TooFewPairs, and whatever the progress raises."""
        first, last = (DESCRIBE_END + (PROGRESS_STEPS - DESCRIBE_END) * i // draws for i in (draw, draw + 1))
        start = time.perf_counter()
        data = self._restricted(protocol) if self.asked.setting == "restricted" else self._unrestricted(protocol)
        embedder = fit.fit_embedder(self.plan, data, self.told.phase(f"fit {draw}", first, last), start=None)
        fitted = time.perf_counter()
        rows = self._embed(embedder)
        seconds = {"fit_seconds": fitted - start, "embed_seconds": time.perf_counter() - fitted}

        def embed(faces: Sequence[EvaluationFace]) -> Rows:
            parts = describe_in_batches(self.context, self.recipe, faces)
            return np.concatenate([embedder.embed(part, self.asked.task) for part in parts])

        return GalleryEmbeddings(rows, embedder.metric, embed, seconds)

    def _unrestricted(self, protocol: Protocol) -> TrainingSet:
        kept = self.foreign.copy()
        kept[self.at[protocol.training]] = True
        return make_training_set(self.plan, self.known, self.rows, kept)

    def _restricted(self, protocol: Protocol) -> TrainingSet:
        """The training folds' pairs and nothing else: who is on the photos is not told."""
        pairs = protocol.training_pairs
        photos, at = np.unique(pairs.index, return_inverse=True)
        at = at.reshape(-1, 2)
        nobody, weights = np.full(len(photos), np.nan), np.ones(len(at), np.float32)
        reporter = TaskData(
            self.asked.task, np.arange(len(photos)), nobody, pairs.groups(), pairs=at, same=pairs.same, weights=weights
        )
        return TrainingSet(self.rows[self.at[photos]], (reporter,), self.recipe.blocks)

    def _embed(self, embedder: Embedder) -> Rows:
        """In pieces, so that the descriptors are not held twice."""
        pieces = range(0, len(self.at), FACES_PER_CHUNK)
        return np.concatenate(
            [embedder.embed(self.rows[self.at[i : i + FACES_PER_CHUNK]], self.asked.task) for i in pieces]
        )


def read_embeddings(
    context: JobContext, model: Model, task: str, faces: Sequence[EvaluationFace] | Sequence[Face]
) -> Rows:
    """Where these faces lie: from the tables where they hold it, else from the crops."""
    parts = []
    for start in range(0, len(faces), FACES_PER_CHUNK):
        context.check()
        part = faces[start : start + FACES_PER_CHUNK]
        held = select(Embedding.face_pk, Embedding.vector).where(Embedding.model_id == model.id, Embedding.task == task)
        with reading(context.resources.database) as session:
            rows = session.execute(held.where(Embedding.face_pk.in_([f.pk for f in part])))
            known = {row.face_pk: row.vector for row in rows}
        missing = [f for f in part if f.pk not in known]
        fresh = model.embed(describe_faces(context, model.recipe, missing), task)
        rows_of = {f.pk: row for f, row in zip(missing, fresh, strict=True)}
        rows_of |= {pk: np.frombuffer(vector, "<f4") for pk, vector in known.items()}
        parts.append(np.stack([rows_of[f.pk] for f in part]))
    return np.concatenate(parts)
