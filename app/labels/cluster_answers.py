"""Take the answer to a question about a group of faces, and store the pair labels that it means."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product

import numpy as np
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from app.db.session import reading
from app.db.statement_limits import wait_for_turn
from app.deps.caller import Caller
from app.errors import Invalid
from app.labels import service
from app.labels.cluster_schemas import ClusterAnswerIn, ClusterAnswerOut, Contradiction
from app.labels.collection_consensus import read_collection_consensus
from app.labels.schemas import LabelIn
from ml.active_learning import FaceGroups, PairAnswers
from ml.types import Ids

MAX_COPIED_BYTES = 4 * 2**20
"""Of the note and of the name of the labeller, which each label of an answer has: 100 members and 100 outliers make
14,950 labels."""


def add_cluster_answer(database: Engine, session: Session, caller: Caller, answer: ClusterAnswerIn) -> ClusterAnswerOut:
    """Store "same" for each pair of members, and "not the same" for each member and outlier.

    Contradictions are looked for first, since nobody else writes to SQLite once the session has begun. Labels that
    others store in the meantime are none.
    Raises Invalid if the answer contradicts itself, is too long, or any of its labels is refused; Busy.
    """
    _check_lists(answer.members, answer.outliers)
    by = answer.by or caller.signature
    _check_copied_bytes(answer, by)
    labels = list(_iterate_labels(answer))
    with reading(database, caller.collections) as reader, wait_for_turn(reader):
        contradictions = _find_contradictions(reader, labels, by)
    added = service.add_labels(session, caller, list(enumerate(labels)))
    if added.refused:
        first = added.refused[0]
        raise Invalid(first.detail, code=first.code)
    return ClusterAnswerOut(accepted=added.accepted, contradictions=contradictions)


def _check_lists(members: Sequence[str], outliers: Sequence[str]) -> None:
    """Raises Invalid if a face is in both lists, or twice in one."""
    both = sorted(set(members) & set(outliers))
    if both:
        raise Invalid(f"face {both[0]} is both a member and an outlier", code="ContradictoryAnswer")
    for name, faces in (("members", members), ("outliers", outliers)):
        if len(set(faces)) < len(faces):
            raise Invalid(f"{name} names a face twice")
    if len(members) + len(outliers) < 2:
        raise Invalid("an answer needs two faces or more")


def _check_copied_bytes(answer: ClusterAnswerIn, by: str) -> None:
    """Raises Invalid if the labels of the answer would hold too much text."""
    members = len(answer.members)
    count = members * (members - 1) // 2 + members * len(answer.outliers)
    size = len(answer.note.encode()) + len(by.encode())
    if count * size > MAX_COPIED_BYTES:
        raise Invalid(
            f"the note and the name of the labeller, {size:,} bytes, would be stored with each of the answer's "
            f"{count:,} labels; they may take {MAX_COPIED_BYTES:,} bytes in all: shorten the note, or name fewer faces"
        )


def _iterate_labels(answer: ClusterAnswerIn) -> Iterable[LabelIn]:
    pairs = [(*pair, True) for pair in combinations(answer.members, 2)]
    pairs += [(*pair, False) for pair in product(answer.members, answer.outliers)]
    for face_a, face_b, same in pairs:
        yield LabelIn(face_a=face_a, face_b=face_b, task=answer.task, same=same, by=answer.by, note=answer.note)


def _find_contradictions(session: Session, labels: Sequence[LabelIn], by: str) -> list[Contradiction]:
    """List the labels that the consensus of all other labels, or what follows from it, decides otherwise."""
    face_ids = {face for label in labels for face in (label.face_a, label.face_b)}
    faces_by_id = service.read_faces(session, sorted(face_ids))
    pk_of = {face_id: face.pk for face_id, face in faces_by_id.items()}
    known = [label for label in labels if label.face_a in pk_of and label.face_b in pk_of]
    collections = {face.collection for face in faces_by_id.values()}
    if not known:
        return []
    pairs = np.array([(pk_of[label.face_a], pk_of[label.face_b]) for label in known], np.int64)
    replaced = {(min(pair), max(pair)) for pair in pairs.tolist()}
    consensus = read_collection_consensus(session, collections, known[0].task, replaced_by=(by, replaced))
    faces, at = np.unique(np.concatenate([consensus.pairs, pairs]), return_inverse=True)
    at = at.reshape(-1, 2)
    decided = PairAnswers(at[: len(consensus)], consensus.same)
    groups = FaceGroups.join(len(faces), decided)
    return [
        Contradiction(face_a=label.face_a, face_b=label.face_b, same=label.same)
        for label, pair in zip(known, at[len(consensus) :], strict=True)
        if _is_contradicted(groups, pair, label.same)
    ]


def _is_contradicted(groups: FaceGroups, pair: Ids, same: bool) -> bool:
    is_joined = bool(groups.numbers[pair[0]] == groups.numbers[pair[1]])
    return (same and not is_joined and bool(groups.are_decided(pair[None])[0])) or (not same and is_joined)
