"""Withdraw all labels of a labeller, and say which pairs are decided otherwise without them."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, exists, select, union, update
from sqlalchemy.orm import Session, aliased

from app.db.id_lists import select_ids
from app.db.tables import Collection, Face, Label, now
from app.galleries.label_consensus import decide_consensus, read_collection_votes, read_rule
from app.labels import service
from app.labels.schemas import ChangedPair, WithdrawnOut

MAX_LISTED_PAIRS = 1000

Decisions = dict[tuple[str, int, int], bool]
"""Task and pair of face pks -> whether they are the same."""


def withdraw_labels(session: Session, by: str) -> WithdrawnOut:
    """Withdraw all labels of a labeller: they stay stored but no longer count.

    Labels that are added meanwhile in another collection stay.
    """
    own: tuple[ColumnElement[bool], ...] = (Label.by == by, Label.withdrawn_at.is_(None))
    ends = union(*(select(face).where(*own) for face in (Label.face_a, Label.face_b))).subquery()
    collections = select(Face.collection_id).join(ends, ends.c[0] == Face.pk).distinct()
    collections = collections.join(Collection, Collection.id == Face.collection_id).where(~Collection.is_deleted)
    chosen = session.scalars(collections).all()
    service.change_collections(session, chosen, is_addition=False)
    if not chosen:
        return WithdrawnOut(withdrawn=0, changed=0, pairs=[])
    own += _lie_in(session, chosen)
    before, after = Decisions(), Decisions()
    for collection, task in _list_deployments(session, own):
        _decide_with_and_without(session, collection, task, by, before, after)
    labels = update(Label).where(*own).values(withdrawn_at=now()).returning(Label.pk)
    withdrawn = len(session.scalars(labels.execution_options(synchronize_session=False)).all())
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
        if a in face_ids and b in face_ids
    ]  # fmt: skip
    return WithdrawnOut(withdrawn=withdrawn, changed=len(changed), pairs=pairs)


def _lie_in(session: Session, collections: Sequence[str]) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of labels whose faces both lie in these collections."""
    faces = Face.__table__.alias()
    is_chosen = faces.c.collection_id.in_(select_ids(session, collections))
    return tuple(exists().where(faces.c.pk == face, is_chosen) for face in (Label.face_a, Label.face_b))


def _decide_with_and_without(
    session: Session, collection: str, task: str, by: str, before: Decisions, after: Decisions
) -> None:
    """Add what is decided with the labels of a labeller, and without them.

    Pairs that the labeller has not judged are decided otherwise only if votes weigh by agreement.
    """
    rule = read_rule(session, collection, task)
    votes = read_collection_votes(session, collection, task, labeller=None if rule.by_agreement else by)
    others = {pair: {name: vote for name, vote in of_pair.items() if name != by} for pair, of_pair in votes.items()}
    for decisions, counted in ((before, votes), (after, {pair: rest for pair, rest in others.items() if rest})):
        settled = decide_consensus(counted, rule)
        decisions |= {
            (task, a, b): same for (a, b), same in zip(settled.pairs.tolist(), settled.same.tolist(), strict=True)
        }


def _list_deployments(session: Session, own: tuple[ColumnElement[bool], ...]) -> list[tuple[str, str]]:
    """List (collection, task) of the labels whose faces lie in one collection."""
    first, second = aliased(Face), aliased(Face)
    labelled = select(first.collection_id, Label.task).join(first, first.pk == Label.face_a)
    labelled = labelled.join(second, second.pk == Label.face_b).where(first.collection_id == second.collection_id)
    return [(collection, task) for collection, task in session.execute(labelled.where(*own).distinct())]
