"""A measurement of a model, or of a way of making one, on a collection's own faces."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import select

from app.db.session import reading, snapshot, writing
from app.db.tables import Embedding, Evaluation, Face, Training
from app.deps.caller import Caller
from app.evaluations.schemas import EvaluationIn
from app.queue.messages import Evaluate
from app.trainings import checking
from app.trainings.plan import Plan
from app.trainings.schemas import TrainingIn
from ml.embedders.base import Embedder
from ml.generation import Generation, Recipe
from ml.types import Rows
from workers import entrants, fitting, ranking, vocabularies, voting
from workers import snapshot as snapshots
from workers.context import JobContext
from workers.entrants import Entrant, Entrants
from workers.gather import batches, describe
from workers.ranking import Placed
from workers.telling import WHOLE, Telling, plain, telling

SERVICE = Caller("", "admin", "evaluate")  # whoever asked was checked when they did
DESCRIBED = 200  # of the thousand steps of the bar
CHUNK = 2048


def run(message: Evaluate, context: JobContext) -> dict[str, Any]:
    """The result: {"evaluation", "report"}. Run again after its end, it only says so.

    Raises Invalid, NotFound, TooFewPairs, Interrupted.
    """
    with reading(context.resources.database) as session:
        row = session.get_one(Evaluation, message.evaluation)
        report, asked = row.report, EvaluationIn.model_validate(row.request)
    if not report:
        with telling(context) as told:
            made = _by_labels(context, asked) if asked.protocol == "labels" else _by_ranking(context, asked, told)
            told.phase("done", WHOLE, WHOLE)(1, 1, {})
        report = plain({"protocol": asked.protocol, "task": asked.task, "model": asked.model} | made)
        with writing(context.resources.database) as session:
            session.get_one(Evaluation, message.evaluation).report = report
    return {"evaluation": message.evaluation, "report": report}


def _by_labels(context: JobContext, asked: EvaluationIn) -> dict[str, Any]:
    generation = context.resources.generations.get(str(asked.model))
    with snapshot(context.resources.database) as session:
        said = voting.settled_here(session, asked.collection, asked.task)
        faces = voting.faces_of(session, said)
        session.expunge_all()
    rows = _stored(context, generation, asked.task, faces)
    return voting.judged(said, [f.pk for f in faces], rows, generation, asked.task)


def _by_ranking(context: JobContext, asked: EvaluationIn, told: Telling) -> dict[str, Any]:
    with snapshot(context.resources.database) as session:
        taking_part = entrants.read(session, asked)
    protocols = entrants.drawn(asked, taking_part)
    if asked.training is None:
        placed = _of_model(context, asked, taking_part)
        made = ranking.judged(asked.task, taking_part, protocols, lambda i: placed)
    else:
        bench = _Bench(context, asked, taking_part, told)
        made = ranking.judged(
            asked.task, taking_part, protocols, lambda i: bench.fitted(protocols[i].training, i, len(protocols))
        )
    return made | {"faces": len(taking_part.gallery), "distractors": len(taking_part.distractors)}


def _of_model(context: JobContext, asked: EvaluationIn, taking_part: Entrants) -> Placed:
    generation = context.resources.generations.get(str(asked.model))
    start = time.perf_counter()

    def place(faces: Sequence[Entrant]) -> Rows:
        return _stored(context, generation, asked.task, faces)

    rows = place(taking_part.gallery)
    return Placed(rows, generation.metric, place, {"embed_seconds": time.perf_counter() - start})


class _Bench:
    """Descriptors of all faces, gathered once; a model fitted for each draw, on its training side alone."""

    def __init__(self, context: JobContext, asked: EvaluationIn, taking_part: Entrants, told: Telling) -> None:
        self.context, self.asked, self.entrants, self.told = context, asked, taking_part, told
        assert asked.training is not None
        wanted = TrainingIn(collection=asked.collection, holdout=0.0, **asked.training.model_dump(by_alias=True))
        with snapshot(context.resources.database) as session:
            self.plan: Plan = checking.plan(session, context.resources.settings, SERVICE, wanted)
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

    def fitted(self, training: np.ndarray[Any, Any], draw: int, draws: int) -> Placed:
        kept = self.foreign.copy()
        kept[self.at[training]] = True
        first, last = (DESCRIBED + (WHOLE - DESCRIBED) * i // draws for i in (draw, draw + 1))
        start = time.perf_counter()
        data = fitting.training_set(self.plan, self.known, self.rows, kept)
        embedder = fitting.fit(self.plan, data, self.told.phase(f"fit {draw}", first, last), before=None)
        fitted = time.perf_counter()
        rows = self._embed(embedder)
        seconds = {"fit_seconds": fitted - start, "embed_seconds": time.perf_counter() - fitted}

        def place(faces: Sequence[Entrant]) -> Rows:
            parts = batches(self.context.resources, self.recipe, faces, self.context)
            return np.concatenate([embedder.embed(part, self.asked.task) for part in parts])

        return Placed(rows, embedder.metric, place, seconds)

    def _embed(self, embedder: Embedder) -> Rows:
        """In pieces, so that the descriptors are not held twice."""
        pieces = range(0, len(self.at), CHUNK)
        return np.concatenate([embedder.embed(self.rows[self.at[i : i + CHUNK]], self.asked.task) for i in pieces])


def _stored(context: JobContext, generation: Generation, task: str, faces: Sequence[Entrant] | Sequence[Face]) -> Rows:
    """Where these faces lie: from the tables where they hold it, else from the crops."""
    parts = []
    for start in range(0, len(faces), CHUNK):
        context.check()
        part = faces[start : start + CHUNK]
        held = select(Embedding.face_pk, Embedding.vector).where(
            Embedding.generation_id == generation.id, Embedding.task == task
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
