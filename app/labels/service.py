"""Add and list labels. A label is never edited."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, insert, or_, select, tuple_, update
from sqlalchemy.orm import Session

from app.db.id_lists import select_ids
from app.db.tables import Collection, Face, Label, Task
from app.db.written_changes import note_raised
from app.deps.caller import Caller
from app.deps.paging import limit_scan, read_page
from app.galleries import label_consensus
from app.labels.refusals import Refusals
from app.labels.schemas import AddedOut, LabelIn, LabelOut
from app.storage.audit_log.notes import note_audited

ROWS_PER_STATEMENT = 10_000
LABELS = Label.metadata.tables[Label.__tablename__]
"""The table itself: rows without objects take a third less of the time for which nobody else writes to SQLite."""


class LabelledFace(NamedTuple):
    pk: int
    collection: str


def add_labels(
    session: Session, caller: Caller, labels: Sequence[tuple[int, LabelIn]], wrong: Refusals | None = None
) -> AddedOut:
    """Store the valid labels and refuse the others one by one.

    labels: each with the number of its record; wrong: the records that could not be parsed

    Raises Invalid if no label is valid.
    """
    face_ids = sorted({f for _, label in labels for f in (label.face_a, label.face_b)})
    collections = {face.collection for face in read_faces(session, face_ids).values()}
    change_collections(session, collections, is_addition=True)
    faces = read_faces(session, face_ids)
    tasks = dict(session.execute(select(Task.name, Task.enabled)).all())
    refused, rows = Refusals(), []
    for index, label in labels:
        problem = _find_problem(label, faces, tasks)
        if problem:
            refused.add(index, *problem)
        else:
            rows.append(_make_row(label, faces, caller))
    if wrong is not None:
        refused.merge(wrong)
    if not rows:
        raise refused.make_error()
    for start in range(0, len(rows), ROWS_PER_STATEMENT):
        session.execute(insert(LABELS), rows[start : start + ROWS_PER_STATEMENT])
    return AddedOut(accepted=len(rows), refused=refused.listed, refused_count=refused.count)


def read_faces(session: Session, face_ids: Sequence[str]) -> dict[str, LabelledFace]:
    """Return face id -> face, of those that exist. The faces of a collection that is being deleted do not."""
    by_id = {}
    rows = select(Face.face_id, Face.pk, Face.collection_id).join(Collection, Collection.id == Face.collection_id)
    for start in range(0, len(face_ids), ROWS_PER_STATEMENT):
        chunk = Face.face_id.in_(select_ids(session, face_ids[start : start + ROWS_PER_STATEMENT]))
        for face_id, pk, collection in session.execute(rows.where(chunk, ~Collection.is_deleted)):
            by_id[face_id] = LabelledFace(pk, collection)
    return by_id


def change_collections(session: Session, collections: Iterable[str], *, is_addition: bool) -> None:
    """Count a change of each collection, so that every process serves the new labels.

    is_addition: whether labels are only added; otherwise all are read anew

    The collections are locked until the transaction ends, in the order of their ids: none of their faces is removed
    before its label is stored.
    """
    collections = sorted(collections)
    note_audited(session, collections)
    raised = Collection.change + 1
    values = {"change": raised, "label_change": raised} | ({} if is_addition else {"label_reread_change": raised})
    for collection in collections:
        changed = update(Collection).where(Collection.id == collection).values(values)
        for created_at, change in session.execute(changed.returning(Collection.created_at, Collection.change)):
            note_raised(session, collection, created_at, change)


def _find_problem(label: LabelIn, faces: dict[str, LabelledFace], tasks: dict[str, bool]) -> tuple[str, str] | None:
    if label.face_a == label.face_b:
        return "SameFace", f"face {label.face_a} cannot be paired with itself"
    unknown = [f for f in (label.face_a, label.face_b) if f not in faces]
    if unknown:
        return "ResourceNotFound", f"no face {' and no face '.join(unknown)}"
    if label.task not in tasks:
        return "UnknownTask", f"no task {label.task!r}; there are: {', '.join(sorted(tasks))}"
    if not tasks[label.task]:
        return "TaskDisabled", f"the task {label.task!r} is off; an administrator can switch it on"
    return None


def _make_row(label: LabelIn, faces: dict[str, LabelledFace], caller: Caller) -> dict[str, object]:
    first, second = sorted((faces[label.face_a].pk, faces[label.face_b].pk))
    by = label.by or caller.signature
    return {
        "task": label.task, "face_a": first, "face_b": second, "same": label.same, "by": by, "note": label.note,
    }  # fmt: skip


class LabelFilter(NamedTuple):
    """Which labels to list."""

    task: str | None
    by: str | None
    face: str | None
    contradicting: bool


def list_labels(
    session: Session, label_filter: LabelFilter, limit: int, next_token: str | None
) -> tuple[list[LabelOut], str | None]:
    """List labels in the order in which they were given. Raises Busy, or Invalid for a wrong token."""
    where = _iterate_conditions(label_filter)
    # the labels of a face are in two indexes, and all are sorted for a page
    # of several filters, SQLite may take the index of the task, which finds most labels
    is_combined = sum(map(bool, (label_filter.task, label_filter.by, label_filter.face))) > 1
    with limit_scan(session, label_filter.contradicting, label_filter.face, is_combined):
        rows, token = read_page(session, Label, Label.pk, limit, next_token, *where)
    ids = {pk for row in rows for pk in (row.face_a, row.face_b)}
    names = dict(session.execute(select(Face.pk, Face.face_id).where(Face.pk.in_(ids))).all())
    known = [row for row in rows if row.face_a in names and row.face_b in names]  # others were erased meanwhile
    return [_make_answer(row, names) for row in known], token


def _iterate_conditions(label_filter: LabelFilter) -> Iterable[ColumnElement[bool]]:
    deleted = select(Face.pk).join(Collection, Collection.id == Face.collection_id).where(Collection.is_deleted)
    yield from (face.not_in(deleted) for face in (Label.face_a, Label.face_b))
    if label_filter.task:
        yield Label.task == label_filter.task
    if label_filter.by:
        yield Label.by == label_filter.by
    if label_filter.face:
        face = select(Face.pk).where(Face.face_id == label_filter.face).scalar_subquery()
        yield or_(Label.face_a == face, Label.face_b == face)
    if label_filter.contradicting:
        yield Label.pk.in_(select(label_consensus.select_standing_labels().c.pk))
        yield tuple_(Label.task, Label.face_a, Label.face_b).in_(label_consensus.select_contradicted_pairs())


def _make_answer(row: Label, names: dict[int, str]) -> LabelOut:
    return LabelOut(
        id=row.pk,
        face_a=names[row.face_a],
        face_b=names[row.face_b],
        task=row.task,
        same=row.same,
        by=row.by,
        note=row.note,
        created_at=row.created_at,
        withdrawn_at=row.withdrawn_at,
    )
