"""Embed a collection's faces with an existing model, or with one fitted on the training side of each draw."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import select

from app.db.session import reading
from app.db.session import snapshot as at_one_moment
from app.db.tables import Embedding, Face, Training
from app.errors import Conflict
from app.learning.evaluation_request import EvaluationRequest
from app.learning.plan import Plan
from app.learning.plan_resolution import make_plan
from app.storage.embedding_codec import decode_embeddings
from ml.distances import Distance
from ml.embedder_training.fit import fit_embedder
from ml.embedder_training.training_set import make_training_set
from ml.embedders.base import Embedder, TaskData, TrainingSet
from ml.evaluation.protocols import Protocol
from ml.model import Model, Recipe
from ml.types import Rows
from workers.context import JobContext
from workers.description import describe_faces, describe_in_batches
from workers.evaluating.dataset import EvaluationFace, EvaluationSet
from workers.progress import PROGRESS_STEPS, ProgressReporter
from workers.training import vocabularies
from workers.training.training_data import read_training_data, record_snapshot

DESCRIBE_END = 200
"""The step of the job's progress at which all faces are described."""
FACES_PER_CHUNK = 2048


@dataclass(frozen=True, eq=False)
class GalleryEmbeddings:
    """The gallery under one draw's model.

    rows: (N, d) embeddings; embed: embeds other faces; seconds: how long each step took
    """

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
    """Describe all faces once, and fit a model for each draw on its training side alone."""

    def __init__(
        self, context: JobContext, request: EvaluationRequest, evaluation_set: EvaluationSet, reporter: ProgressReporter
    ) -> None:
        """Raises Conflict if faces were removed since the set was read."""
        self.context, self.request, self.reporter = context, request, reporter
        with at_one_moment(context.resources.database) as session:
            self.plan: Plan = make_plan(session, context.resources.settings, request.training_request())
            snapshot = record_snapshot(session, Training(snapshot={}), self.plan)
            self.data = read_training_data(session, self.plan, snapshot)
        index_of = {face.pk: i for i, face in enumerate(self.data.faces)}
        if not all(face.pk in index_of for face in evaluation_set.gallery):
            raise Conflict("faces of the collection were removed while the evaluation began; start it again")
        self.gallery_indices = np.array([index_of[face.pk] for face in evaluation_set.gallery], np.int64)
        self.is_foreign = np.array([f.collection_id != request.collection for f in self.data.faces], np.bool_)
        self.plan = vocabularies.learn_vocabularies(
            context, self.plan, self.data.faces, reporter.phase("vocabulary", 0, 20)
        )
        progress = reporter.phase("describe", 20, DESCRIBE_END)
        self.rows = describe_faces(context, self.recipe, self.data.faces, progress)

    @property
    def recipe(self) -> Recipe:
        return self.plan.recipe

    def fit_draw(self, protocol: Protocol, draw: int, draws: int) -> GalleryEmbeddings:
        """Fit on the protocol's training side and embed the gallery. The progress shows draw `draw` of `draws`.

        Raises TooFewPairs, and whatever the progress raises.
        """
        first, last = (DESCRIBE_END + (PROGRESS_STEPS - DESCRIBE_END) * i // draws for i in (draw, draw + 1))
        start = time.perf_counter()
        data = self._restricted(protocol) if self.request.setting == "restricted" else self._unrestricted(protocol)
        progress = self.reporter.phase(f"fit {draw}", first, last)
        embedder = fit_embedder(self.plan.method, self.plan.options, data, progress)
        fitted = time.perf_counter()
        rows = self._embed(embedder)
        seconds = {"fit_seconds": fitted - start, "embed_seconds": time.perf_counter() - fitted}

        def embed(faces: Sequence[EvaluationFace]) -> Rows:
            parts = describe_in_batches(self.context, self.recipe, faces)
            return np.concatenate([embedder.embed(part, self.request.task) for part in parts])

        return GalleryEmbeddings(rows, embedder.metric, embed, seconds)

    def _unrestricted(self, protocol: Protocol) -> TrainingSet:
        kept = self.is_foreign.copy()
        kept[self.gallery_indices[protocol.training]] = True
        blocks, seed = self.recipe.blocks, self.plan.seed
        return make_training_set(self.data.tasks, self.data.people, self.rows, kept, blocks=blocks, seed=seed)

    def _restricted(self, protocol: Protocol) -> TrainingSet:
        """Learn from the pairs of the training folds and nothing else: the people on the photos are unknown."""
        pairs = protocol.training_pairs
        photos, ends = np.unique(pairs.index, return_inverse=True)
        ends = ends.reshape(-1, 2)
        unknown, weights = np.full(len(photos), np.nan), np.ones(len(ends), np.float32)
        task_data = TaskData(
            self.request.task,
            np.arange(len(photos)),
            unknown,
            pairs.groups(),
            pairs=ends,
            same=pairs.same,
            weights=weights,
        )
        return TrainingSet(self.rows[self.gallery_indices[photos]], (task_data,), self.recipe.blocks)

    def _embed(self, embedder: Embedder) -> Rows:
        """Embed the gallery in chunks, so that its descriptors are not held twice."""
        starts = range(0, len(self.gallery_indices), FACES_PER_CHUNK)
        return np.concatenate(
            [
                embedder.embed(self.rows[self.gallery_indices[i : i + FACES_PER_CHUNK]], self.request.task)
                for i in starts
            ]
        )


def read_embeddings(
    context: JobContext, model: Model, task: str, faces: Sequence[EvaluationFace] | Sequence[Face]
) -> Rows:
    """Return (N, d) embeddings: from the database where it has them, else from the crops."""
    parts = []
    for start in range(0, len(faces), FACES_PER_CHUNK):
        context.check()
        part = faces[start : start + FACES_PER_CHUNK]
        stored = select(Embedding.face_pk, Embedding.vector).where(
            Embedding.model_id == model.id, Embedding.task == task
        )
        with reading(context.resources.database) as session:
            rows = session.execute(stored.where(Embedding.face_pk.in_([f.pk for f in part])))
            known = {row.face_pk: row.vector for row in rows}
        missing = [f for f in part if f.pk not in known]
        fresh = model.embed(describe_faces(context, model.recipe, missing), task)
        rows_of = {f.pk: row for f, row in zip(missing, fresh, strict=True)}
        rows_of |= zip(known, decode_embeddings(list(known.values()), fresh.shape[1]), strict=True)
        parts.append(np.stack([rows_of[f.pk] for f in part]))
    return np.concatenate(parts)
