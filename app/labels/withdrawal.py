"""Withdraw all labels of a labeller, and say which pairs are decided otherwise without them."""

from collections.abc import Iterator, Mapping

from sqlalchemy import ColumnElement, or_, select, update
from sqlalchemy.orm import Session, aliased

from app.db.tables import Face, Label, now
from app.galleries.label_consensus import decide_collection
from app.labels import service
from app.labels.schemas import ChangedPair, WithdrawnOut

MAX_LISTED_PAIRS = 1000

Decisions = Mapping[tuple[str, int, int], bool]
"""Task and pair of face pks -> whether they are the same."""


def withdraw_labels(session: Session, by: str) -> WithdrawnOut:
    """Withdraw all labels of a labeller: they stay stored but no longer count."""
    own = (Label.by == by, Label.withdrawn_at.is_(None))
    ends = (select(face).where(*own) for face in (Label.face_a, Label.face_b))
    chosen = select(Face.collection_id).where(or_(*(Face.pk.in_(faces) for faces in ends))).distinct()
    service.change_collections(session, session.scalars(chosen).all())
    deployments = _list_deployments(session, own)
    before = _read_decisions(session, deployments)
    labels = update(Label).where(*own).values(withdrawn_at=now()).returning(Label.pk)
    withdrawn = len(session.scalars(labels.execution_options(synchronize_session=False)).all())
    after = _read_decisions(session, deployments)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    listed = changed[:MAX_LISTED_PAIRS]
    pks = {pk for _, *pair in listed for pk in pair}
    face_ids = dict(session.execute(select(Face.pk, Face.face_id).where(Face.pk.in_(pks))).all())
    pairs = [
        ChangedPair(
            task=task, face_a=face_ids[a], face_b=face_ids[b], before=before.get((task, a, b)),
            after=after.get((task, a, b)),
        )
        for task, a, b in listed
    ]  # fmt: skip
    return WithdrawnOut(withdrawn=withdrawn, changed=len(changed), pairs=pairs)


def _list_deployments(session: Session, own: tuple[ColumnElement[bool], ...]) -> list[tuple[str, str]]:
    """List (collection, task) of the labels whose faces lie in one collection."""
    first, second = aliased(Face), aliased(Face)
    labelled = select(first.collection_id, Label.task).join(first, first.pk == Label.face_a)
    labelled = labelled.join(second, second.pk == Label.face_b).where(first.collection_id == second.collection_id)
    return [(collection, task) for collection, task in session.execute(labelled.where(*own).distinct())]


def _read_decisions(session: Session, deployments: list[tuple[str, str]]) -> Decisions:
    def iterate() -> Iterator[tuple[tuple[str, int, int], bool]]:
        for collection, task in deployments:
            settled = decide_collection(session, collection, task)
            for (a, b), same in zip(settled.pairs.tolist(), settled.same.tolist(), strict=True):
                yield (task, a, b), same

    return dict(iterate())
