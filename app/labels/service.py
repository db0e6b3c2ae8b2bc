"""Labels: added, listed, taken back. Never edited."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, insert, or_, select, tuple_, update
from sqlalchemy.orm import Session

from app.db.tables import Face, Label, Task, now
from app.deps.caller import Caller
from app.deps.paging import page
from app.errors import Invalid
from app.labels.schemas import AddedOut, LabelIn, LabelOut, Refused
from app.learning import label_consensus

CHUNK = 10_000


class Known(NamedTuple):
    pk: int
    collection: str


def add(
    session: Session, caller: Caller, told: Sequence[tuple[int, LabelIn]], wrong: Sequence[Refused] = ()
) -> AddedOut:
    """Keeps what can be kept; the rest is refused one by one. `wrong` could not even be read.

    Raises Forbidden where the key does not cover both faces' collections, Invalid where nothing could be kept.
    """
    faces = _faces(session, {f for _, label in told for f in (label.face_a, label.face_b)})
    for collection in {face.collection for face in faces.values()}:
        caller.check(collection)
    tasks = dict(session.execute(select(Task.name, Task.enabled)).all())
    refused, rows = list(wrong), []
    for index, label in told:
        against = _against(label, faces, tasks)
        if against:
            refused.append(Refused(index=index, code=against[0], detail=against[1]))
        else:
            rows.append(_row(label, faces, caller))
    if not rows:
        raise _nothing_kept(refused)
    for start in range(0, len(rows), CHUNK):
        session.execute(insert(Label), rows[start : start + CHUNK])
    return AddedOut(accepted=len(rows), refused=sorted(refused, key=lambda r: r.index))


def _faces(session: Session, face_ids: Iterable[str]) -> dict[str, Known]:
    """Held until the transaction ends, so that none is removed before its label is kept."""
    ids, found = sorted(face_ids), {}
    for start in range(0, len(ids), CHUNK):
        chosen = select(Face.face_id, Face.pk, Face.collection_id).where(Face.face_id.in_(ids[start : start + CHUNK]))
        for face_id, pk, collection in session.execute(chosen.with_for_update(read=True, key_share=True)):
            found[face_id] = Known(pk, collection)
    return found


def _against(label: LabelIn, faces: dict[str, Known], tasks: dict[str, bool]) -> tuple[str, str] | None:
    if label.face_a == label.face_b:
        return "SameFace", f"face {label.face_a} cannot be compared with itself"
    unknown = [f for f in (label.face_a, label.face_b) if f not in faces]
    if unknown:
        return "ResourceNotFound", f"no face {' and no face '.join(unknown)}"
    if label.task not in tasks:
        return "UnknownTask", f"no task {label.task!r}; there are: {', '.join(sorted(tasks))}"
    if not tasks[label.task]:
        return "TaskDisabled", f"the task {label.task!r} is off; an administrator may switch it on"
    return None


def _row(label: LabelIn, faces: dict[str, Known], caller: Caller) -> dict[str, object]:
    first, second = sorted((faces[label.face_a].pk, faces[label.face_b].pk))
    by = label.by or caller.signature
    return {
        "task": label.task, "face_a": first, "face_b": second, "same": label.same, "by": by, "note": label.note,
    }  # fmt: skip


def _nothing_kept(refused: Sequence[Refused]) -> Invalid:
    first = refused[0] if refused else Refused(index=0, code="InvalidParameter", detail="there is no label in it")
    detail = first.detail if len(refused) < 2 else f"none of the {len(refused)} labels can be kept; {first.detail}"
    return Invalid(detail, code=first.code, accepted=0, refused=[r.model_dump() for r in refused[:1000]])


class Wanted(NamedTuple):
    """Which labels are listed."""

    task: str | None
    by: str | None
    face: str | None
    contradicting: bool


def listed(
    session: Session, caller: Caller, wanted: Wanted, limit: int, next_token: str | None
) -> tuple[list[LabelOut], str | None]:
    """In the order in which they were given; a bound key sees those of its collections alone."""
    rows, token = page(session, Label, Label.pk, limit, next_token, *_where(wanted), *_covered(caller))
    ids = {pk for row in rows for pk in (row.face_a, row.face_b)}
    names = dict(session.execute(select(Face.pk, Face.face_id).where(Face.pk.in_(ids))).all())
    return [_shown(row, names) for row in rows], token


def _where(wanted: Wanted) -> Iterable[ColumnElement[bool]]:
    if wanted.task:
        yield Label.task == wanted.task
    if wanted.by:
        yield Label.by == wanted.by
    if wanted.face:
        face = select(Face.pk).where(Face.face_id == wanted.face).scalar_subquery()
        yield or_(Label.face_a == face, Label.face_b == face)
    if wanted.contradicting:
        yield Label.pk.in_(select(label_consensus.latest().c.pk))
        yield tuple_(Label.task, Label.face_a, Label.face_b).in_(label_consensus.contradicted())


def _covered(caller: Caller) -> Iterable[ColumnElement[bool]]:
    if caller.collections:
        mine = select(Face.pk).where(Face.collection_id.in_(caller.collections))
        yield and_(Label.face_a.in_(mine), Label.face_b.in_(mine))


def _shown(row: Label, names: dict[int, str]) -> LabelOut:
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


def withdraw(session: Session, caller: Caller, by: str) -> int:
    """All that this labeller said counts for nothing from now on, and stays on record; how many labels that were."""
    mine = update(Label).where(Label.by == by, Label.withdrawn_at.is_(None), *_covered(caller))
    return len(session.scalars(mine.values(withdrawn_at=now()).returning(Label.pk)).all())
