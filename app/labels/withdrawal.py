"""Withdraw all labels of a labeller in steps, and say which pairs are decided otherwise without them."""

from collections.abc import Iterator, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from fastapi import Depends
from sqlalchemy import ColumnElement, Engine, func, select, update
from sqlalchemy.orm import Session, aliased

from app.db.id_lists import select_ids
from app.db.session import reading, writing
from app.db.statement_limits import wait_for_turn
from app.db.tables import Collection, Face, Label, now
from app.deps import AuditDep, CallerDep, ResourcesDep
from app.deps.caller import Caller
from app.deps.key_secrets import check_still_opened
from app.errors import Busy, Unauthenticated
from app.galleries.label_consensus import decide_consensus, read_collection_votes, read_rule
from app.labels import service
from app.labels.schemas import ChangedPair, WithdrawnOut
from app.storage.audit_log.notes import NOTE, AuditNote

LABELS_PER_STEP = 2_000
"""Of one transaction, for which nobody else writes to SQLite. Each may have a note of 16 KiB, which is written anew."""
MAX_LISTED_PAIRS = 1000

Decisions = dict[tuple[str, str, int, int], bool]
"""Collection, task and pair of face pks -> whether they are the same."""


class _WithdrawalStep(NamedTuple):
    """Labels that are withdrawn together, and the collections of their faces. end: the pk of the last that was read"""

    pks: list[int]
    collections: set[str]
    end: int
    is_last: bool


class _ChangedDecisions(NamedTuple):
    """The pairs that are decided otherwise. listed: the first of them, as keys of `before` and `after`"""

    before: Decisions
    after: Decisions
    total: int
    listed: list[tuple[str, str, int, int]]


@dataclass
class LabelWithdrawal:
    """Withdraws labels for one request. committed: how many are withdrawn, whatever becomes of the request"""

    database: Engine
    caller: Caller
    note: AuditNote
    committed: int = 0

    def withdraw(self, session: Session, by: str) -> WithdrawnOut:
        """Withdraw all labels of a labeller: they stay stored but no longer count. Labels that come meanwhile stay.

        session: of the last step, which is committed with the answer
        The oldest labels come first: if the request ends between two steps, no label counts again that a later one of
        the same labeller has replaced, and a repeated request withdraws the rest.
        Raises Busy, Unauthenticated if the key is revoked meanwhile.
        """
        own: tuple[ColumnElement[bool], ...] = (Label.by == by, Label.withdrawn_at.is_(None))
        with self._read() as reader, wait_for_turn(reader):
            own += (Label.pk <= (reader.scalar(select(func.max(Label.pk)).where(*own)) or 0),)
            changed = _compare_decisions(reader, by, own)
        start = 0
        while True:
            with self._read() as reader:
                step = _read_step(reader, own, start)
            if step.is_last:
                locked = step.collections | {collection for collection, *_ in changed.listed}
                withdrawn = self.committed + _withdraw_labels(session, step.pks, locked)
                return WithdrawnOut(withdrawn=withdrawn, changed=changed.total, pairs=_describe(session, changed))
            with writing(self.database, self.caller.collections) as writer:
                writer.info[NOTE] = self.note
                withdrawn = _withdraw_labels(writer, step.pks, step.collections)
                check_still_opened(writer, self.caller)
            self.committed += withdrawn
            start = step.end

    def _read(self) -> AbstractContextManager[Session]:
        return reading(self.database, self.caller.collections)


def open_withdrawal(resources: ResourcesDep, caller: CallerDep, note: AuditDep) -> Iterator[LabelWithdrawal]:
    """Have an error say that labels were withdrawn, if some were: others say that nothing was stored."""
    withdrawal = LabelWithdrawal(resources.database, caller, note)
    try:
        yield withdrawal
    except (Busy, Unauthenticated) as error:
        if not withdrawal.committed:
            raise
        raise type(error)(
            f"{withdrawal.committed:,} labels or more were withdrawn, but perhaps not all: repeat the request, with a "
            "key that is valid, to withdraw the rest"
        ) from error


WithdrawalDep = Annotated[LabelWithdrawal, Depends(open_withdrawal, scope="function")]
"""Comes before the session of the route, whose errors it explains."""


def _read_step(session: Session, own: Sequence[ColumnElement[bool]], start: int) -> _WithdrawalStep:
    """Read the next labels after the one with the pk `start`. Those of a collection that is being deleted stay."""
    labels = select(Label.pk, Label.face_a, Label.face_b).where(*own, Label.pk > start)
    rows = session.execute(labels.order_by(Label.pk).limit(LABELS_PER_STEP + 1)).all()
    is_last, rows = len(rows) <= LABELS_PER_STEP, rows[:LABELS_PER_STEP]
    pks = select_ids(session, sorted({pk for row in rows for pk in (row.face_a, row.face_b)}))
    faces = select(Face.pk, Face.collection_id).join(Collection, Collection.id == Face.collection_id)
    collection_of = dict(session.execute(faces.where(Face.pk.in_(pks), ~Collection.is_deleted)).all())
    kept = [row for row in rows if row.face_a in collection_of and row.face_b in collection_of]
    collections = {collection_of[pk] for row in kept for pk in (row.face_a, row.face_b)}
    return _WithdrawalStep([row.pk for row in kept], collections, rows[-1].pk if rows else start, is_last)


def _withdraw_labels(session: Session, pks: Sequence[int], collections: Set[str]) -> int:
    """Withdraw these labels, and count a change of these collections, all of theirs and maybe more."""
    service.change_collections(session, collections, is_addition=False)
    if not pks:
        return 0
    chosen = (Label.pk.in_(select_ids(session, pks)), Label.withdrawn_at.is_(None))
    labels = update(Label).where(*chosen).values(withdrawn_at=now()).returning(Label.pk)
    return len(session.scalars(labels.execution_options(synchronize_session=False)).all())


def _compare_decisions(session: Session, by: str, own: Sequence[ColumnElement[bool]]) -> _ChangedDecisions:
    """Decide the pairs of every collection with the labels of a labeller, and without them."""
    before, after = Decisions(), Decisions()
    for collection, task in _list_deployments(session, own):
        _decide_with_and_without(session, collection, task, by, before, after)
    changed = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    listed = sorted(changed, key=lambda key: key[1:])[:MAX_LISTED_PAIRS]
    return _ChangedDecisions(before, after, len(changed), listed)


def _describe(session: Session, changed: _ChangedDecisions) -> list[ChangedPair]:
    """Describe the listed pairs of which both faces are there still. Their collections are locked."""
    pks = select_ids(session, [pk for _, _, *pair in changed.listed for pk in pair])
    faces = select(Face.pk, Face.face_id).join(Collection, Collection.id == Face.collection_id)
    face_ids = dict(session.execute(faces.where(Face.pk.in_(pks), ~Collection.is_deleted)).all())
    return [
        ChangedPair(
            task=key[1], face_a=face_ids[key[2]], face_b=face_ids[key[3]], before=changed.before.get(key),
            after=changed.after.get(key),
        )
        for key in changed.listed
        if key[2] in face_ids and key[3] in face_ids
    ]  # fmt: skip


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
            (collection, task, a, b): same
            for (a, b), same in zip(settled.pairs.tolist(), settled.same.tolist(), strict=True)
        }


def _list_deployments(session: Session, own: Sequence[ColumnElement[bool]]) -> list[tuple[str, str]]:
    """List (collection, task) of the labels whose faces lie in one collection."""
    first, second = aliased(Face), aliased(Face)
    labelled = select(first.collection_id, Label.task).join(first, first.pk == Label.face_a)
    labelled = labelled.join(second, second.pk == Label.face_b).where(first.collection_id == second.collection_id)
    labelled = labelled.join(Collection, Collection.id == first.collection_id).where(~Collection.is_deleted)
    return [(collection, task) for collection, task in session.execute(labelled.where(*own).distinct())]
