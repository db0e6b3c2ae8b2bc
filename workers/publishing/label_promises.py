"""The labels that a candidate would break: pairs "not the same" that pass under it, and pairs "same" that it loses."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.session import snapshot
from app.db.tables import Deployment, Embedding, Face, Subject, now
from app.errors import Conflict
from app.galleries import label_consensus
from app.galleries.label_consensus import LabelConsensus
from app.galleries.retention import may_be_used
from app.serving import index_builder
from app.serving.compensation.store import read_compensation
from app.serving.scores import Scores
from app.storage.embedding_codec import decode_embeddings
from ml.model import Model
from ml.types import Ids, Rows
from workers.context import JobContext

Flags = NDArray[np.bool_]
FACES_PER_QUERY = 10_000
MAX_LISTED_PAIRS = 100
SAMPLE_FACES = 1_000
"""Faces whose pairs are the sample of unlabelled impostors: half a million pairs."""


@dataclass(frozen=True, eq=False)
class _Judge:
    """One model as a judge of pairs: a pair passes if its distance is within the collection's default threshold."""

    model: Model
    threshold: float

    def passes(self, rows: Rows, pairs: Ids) -> Flags:
        """Return which of (P, 2) pairs of rows pass."""
        return np.asarray(self.model.metric.pair_distances(rows, pairs) <= self.threshold, np.bool_)


def check_labels(
    context: JobContext, collection: str, task: str, candidate: Model, measured: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Compare candidate and champion on the settled labels: who passes at each one's own default threshold.

    Every face must have its embedding by the candidate. measured: what was measured of the candidate here
    Returns None without labels, or where a threshold is missing: nothing was calibrated.
    """
    with snapshot(context.resources.database) as session:
        deployment = session.get(Deployment, (collection, task))
        settled = _leave_out_refused(session, label_consensus.decide_collection(session, collection, task))
        if deployment is None or not len(settled):
            return None
        champion = context.resources.models.get(deployment.champion)
        before = _make_judge(deployment.measurements.get(champion.id), champion, task)
        after = _make_judge(measured, candidate, task)
        if before is None or after is None:
            return None
        labelled = np.unique(settled.pairs)
        sampled, impostors = _sample_impostors(session, collection, settled.pairs)
        pks = np.union1d(labelled, sampled)
        rows = [_read_rows(session, collection, task, judge.model, pks) for judge in (before, after)]
    known: Flags = np.all([np.isfinite(r).all(axis=1) for r in rows], axis=0)
    pairs, strangers = np.searchsorted(pks, settled.pairs), np.searchsorted(pks, impostors)
    pairs_known, strangers = known[pairs].all(axis=1), strangers[known[strangers].all(axis=1)]
    pairs, same, named = pairs[pairs_known], settled.same[pairs_known], settled.pairs[pairs_known]
    passed, passes = before.passes(rows[0], pairs), after.passes(rows[1], pairs)
    fell = before.passes(rows[0], strangers) & ~after.passes(rows[1], strangers)
    with snapshot(context.resources.database) as session:
        return {
            "policy": deployment.label_policy,
            "pairs": {"same": int(same.sum()), "different": int((~same).sum())},
            "different_passing": {"before": int((passed & ~same).sum()), "after": int((passes & ~same).sum())},
            "same_passing": {"before": int((passed & same).sum()), "after": int((passes & same).sum())},
            "broken": _describe_pairs(session, named, same, (passes & ~same) | (passed & ~passes & same)),
            "unlabelled_impostors": {
                "pairs": len(strangers),
                "passing_before": int(before.passes(rows[0], strangers).sum()),
                "passing_after": int(after.passes(rows[1], strangers).sum()),
                "fell": int(fell.sum()),
            },
        }


def _leave_out_refused(session: Session, settled: LabelConsensus) -> LabelConsensus:
    """Leave out the pairs with a face that may not be used."""
    pks, usable = np.unique(settled.pairs).tolist(), set[int]()
    chosen = select(Face.pk).outerjoin(Subject, Subject.pk == Face.subject_pk).where(may_be_used(now()))
    for start in range(0, len(pks), FACES_PER_QUERY):
        usable.update(session.scalars(chosen.where(Face.pk.in_(pks[start : start + FACES_PER_QUERY]))))
    kept = np.isin(settled.pairs, list(usable)).all(axis=1)
    return replace(settled, pairs=settled.pairs[kept], same=settled.same[kept], weights=settled.weights[kept])


def refuse_broken_labels(checked: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise Conflict with the code LabelsBroken if a task's policy is "refuse" and the candidate breaks labels of it.

    checked: task -> what `check_labels` returned
    """
    for task, labels in checked.items():
        if labels["policy"] == "refuse" and labels["broken"]:
            passing = labels["different_passing"]["after"]
            lost = len(labels["broken"]) - passing
            raise Conflict(
                f"under this model {passing} pairs that are labelled 'not the same' pass as {task}, and {lost} pairs "
                "labelled 'same' no longer pass. Publish with `override` and a `reason`, or set `label_policy` to "
                "'list' to publish and list them",
                code="LabelsBroken",
                labels={task: dict(labels)},
            )


def _make_judge(measured: Mapping[str, Any] | None, model: Model, task: str) -> _Judge | None:
    threshold = Scores.of(measured, model, task).threshold()
    return None if threshold is None else _Judge(model, threshold.distance)


def _sample_impostors(session: Session, collection: str, labelled: Ids) -> tuple[Ids, Ids]:
    """Return the pks of sampled faces of people with names, rising, and the (P, 2) pairs of different people among them
    that have no label."""
    chosen = select(Face.pk, Face.subject_pk).where(
        Face.collection_id == collection, Face.subject_pk.is_not(None), Face.role == "gallery"
    )
    faces = np.array([tuple(row) for row in session.execute(chosen.order_by(Face.pk))], np.int64).reshape(-1, 2)
    kept = np.sort(np.random.default_rng(0).permutation(len(faces))[:SAMPLE_FACES])
    pks, subjects = faces[kept].T
    first, second = np.triu_indices(len(pks), 1)
    is_impostor = subjects[first] != subjects[second]
    pairs = np.stack([pks[first[is_impostor]], pks[second[is_impostor]]], axis=1)
    if not len(pairs):
        return pks, pairs
    span = int(max(pks.max(), labelled.max())) + 1
    return pks, pairs[~np.isin(pairs @ np.array([span, 1]), labelled @ np.array([span, 1]))]


def _read_rows(session: Session, collection: str, task: str, model: Model, pks: Ids) -> Rows:
    """Return the (n, dim) embeddings of (n,) rising face pks, as searches compare them; NaN where a face has none."""
    rows = np.full((len(pks), index_builder.find_embedding_size(model, task)), np.nan, np.float32)
    compensation = read_compensation(session, collection, task, model.id)
    chosen = select(Embedding.face_pk, Embedding.vector, Face.source).join(Face, Face.pk == Embedding.face_pk)
    chosen = chosen.where(Embedding.model_id == model.id, Embedding.task == task)
    for start in range(0, len(pks), FACES_PER_QUERY):
        part = session.execute(chosen.where(Embedding.face_pk.in_(pks[start : start + FACES_PER_QUERY].tolist()))).all()
        if part:
            present, vectors, sources = zip(*part, strict=True)
            rows[np.searchsorted(pks, present)] = compensation.correct(
                decode_embeddings(vectors, rows.shape[1]), sources
            )
    return rows


def _describe_pairs(session: Session, pairs: Ids, same: Flags, chosen: Flags) -> list[dict[str, Any]]:
    """Describe at most MAX_LISTED_PAIRS of the chosen pairs by their face ids. pairs: (P, 2) pks"""
    listed = np.flatnonzero(chosen)[:MAX_LISTED_PAIRS]
    pks = set(pairs[listed].ravel().tolist())
    face_ids = dict(session.execute(select(Face.pk, Face.face_id).where(Face.pk.in_(pks))).all())
    return [
        {"face_a": face_ids[a], "face_b": face_ids[b], "same": bool(same[i])}
        for i, (a, b) in zip(listed.tolist(), pairs[listed].tolist(), strict=True)
        if a in face_ids and b in face_ids
    ]
