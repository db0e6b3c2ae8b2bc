"""Decide what several labellers agree on: a weighted majority of each labeller's latest label of a pair.

A tie decides nothing, and neither does a majority of fewer labellers than the quorum. All labels stay in the table.
A deployment states whether all votes weigh the same, or as much as the agreement of labellers shows.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Select, Subquery, func, select
from sqlalchemy.orm import Session, aliased

from app.db.id_lists import select_ids
from app.db.tables import Deployment, Face, Label
from ml.labeller_reliability import Votes, estimate_reliability
from ml.types import Ids, Rows

LABELS_PER_QUERY = 10_000
VotesByPair = dict[tuple[int, int], dict[str, bool]]
"""`Votes` that more can be added to."""
EQUAL, AGREEMENT = "equal", "agreement"
"""How much votes weigh: all the same, or by the agreement of their labeller with others."""


@dataclass(frozen=True)
class ConsensusRule:
    """How votes decide a pair.

    weights: labeller -> weight of their vote, 1 by default; quorum: how many labellers of some weight a majority needs
    by_agreement: whether the other labellers' weights are estimated: see `ml.labeller_reliability`
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    quorum: int = 1
    by_agreement: bool = False

    def weigh(self, votes: Votes) -> Mapping[str, float]:
        """Return labeller -> weight for the labellers of these votes whose weight is not 1."""
        return {**estimate_reliability(votes).weight_of, **self.weights} if self.by_agreement else self.weights


@dataclass(frozen=True, eq=False)
class LabelConsensus:
    """The pairs that are decided.

    pairs: (P, 2) face pks, the smaller first, in rising order
    same: (P,); weights: (P,) in 0..1, the absolute mean of the signed and weighed votes, at most 1
    unsettled: how many labelled pairs are not decided
    """

    pairs: Ids
    same: NDArray[np.bool_]
    weights: Rows
    unsettled: int = 0

    def __len__(self) -> int:
        return len(self.pairs)


def select_standing_labels() -> Subquery:
    """Select (pk, task, face_a, face_b) of each labeller's latest label of a pair that is not withdrawn."""
    grouped = (Label.task, Label.face_a, Label.face_b)
    latest = select(func.max(Label.pk).label("pk"), *grouped).where(Label.withdrawn_at.is_(None))
    return latest.group_by(*grouped, Label.by).subquery()


def select_contradicted_pairs() -> Select[tuple[str, int, int]]:
    """Select (task, face_a, face_b) of the pairs on which labellers disagree."""
    latest = select_standing_labels()
    pair = (latest.c.task, latest.c.face_a, latest.c.face_b)
    labels = select(*pair).join(Label, Label.pk == latest.c.pk)
    return labels.group_by(*pair).having(func.count(Label.same.distinct()) > 1)


def find_last_label(session: Session, task: str) -> int:
    """Return the pk of a task's last label, 0 if it has none."""
    return session.scalar(select(func.max(Label.pk)).where(Label.task == task)) or 0


def read_rule(session: Session, collection: str, task: str) -> ConsensusRule:
    """Return the rule of a deployment. Without a deployment, all votes weigh the same and one is enough."""
    deployment = session.get(Deployment, (collection, task))
    if deployment is None:
        return ConsensusRule()
    return ConsensusRule(quorum=deployment.label_quorum, by_agreement=deployment.label_weights == AGREEMENT)


def decide_collection(session: Session, collection: str, task: str) -> LabelConsensus:
    """Decide the labelled pairs of a collection's faces by the rule of its deployment."""
    return decide_consensus(read_collection_votes(session, collection, task), read_rule(session, collection, task))


def read_collection_votes(session: Session, collection: str, task: str, labeller: str | None = None) -> VotesByPair:
    """Read the votes on the pairs of a collection's faces that count now. A labeller's last label of a pair counts.

    labeller: only the pairs that this labeller has judged too
    """
    standing = _select_votes([collection], task)
    if labeller is not None:
        own = aliased(Label)
        judged = select(own.face_a, own.face_b).where(own.by == labeller, own.task == task, own.withdrawn_at.is_(None))
        pairs = judged.distinct().subquery()
        standing = standing.join(pairs, (pairs.c.face_a == Label.face_a) & (pairs.c.face_b == Label.face_b))
    return _collect_votes(session.execute(standing))


def read_votes_after(session: Session, collection: str, task: str, pk: int) -> tuple[VotesByPair, int]:
    """Read the votes of a collection's labels that were added after the label with this pk.

    Return them with the pk of the last one. Labels of a collection are committed in the order of their pks, since it is
    locked before they are stored.
    """
    added = session.execute(_select_votes([collection], task).add_columns(Label.pk).where(Label.pk > pk)).all()
    return _collect_votes(row[:4] for row in added), max((row.pk for row in added), default=pk)


def read_votes_until(session: Session, collections: Collection[str], task: str, pk: int) -> VotesByPair:
    """Read the votes on the pairs of these collections' faces, by labels up to the one with this pk.

    A labeller's last label of a pair counts. Labels that were withdrawn or removed since are left out.
    """
    labels = _select_votes(collections, task).where(Label.pk <= pk)
    return _collect_votes(session.execute(labels, execution_options={"yield_per": LABELS_PER_QUERY}))


def read_listed_votes(session: Session, pks: Collection[int]) -> VotesByPair:
    """Read the votes of these labels, which are all of one task. The same count as in `read_votes_until`."""
    return _collect_votes(_iterate_labels(session, sorted(pks)))


def _select_votes(collections: Collection[str], task: str) -> Select[int, int, str, bool]:
    """Select the labels of the faces of these collections that count now, in the order in which they were given.

    Each face is looked up by its key. PostgreSQL may join all labels with all faces of the collection while it has no
    statistics of new tables.
    """
    standing = select(Label.face_a, Label.face_b, Label.by, Label.same).where(
        Label.task == task, Label.withdrawn_at.is_(None)
    )
    for pk in (Label.face_a, Label.face_b):
        standing = standing.where(select(Face.collection_id).where(Face.pk == pk).scalar_subquery().in_(collections))
    return standing.order_by(Label.pk)


def decide_consensus(votes: Votes, rule: ConsensusRule = ConsensusRule()) -> LabelConsensus:
    """Apply the rule to the votes. Labellers whose weight is 0 do not count towards the quorum."""
    weight_of = rule.weigh(votes)
    pairs, same, weights = [], [], []
    for pair in sorted(votes):
        decision = decide_pair(votes[pair], weight_of, rule.quorum)
        if decision is not None:
            pairs.append(pair)
            same.append(decision[0])
            weights.append(decision[1])
    return LabelConsensus(
        np.array(pairs, np.int64).reshape(-1, 2),
        np.array(same, np.bool_),
        np.array(weights, np.float32),
        len(votes) - len(pairs),
    )


def decide_pair(votes: Mapping[str, bool], weight_of: Mapping[str, float], quorum: int) -> tuple[bool, float] | None:
    """Decide one pair: whether it is the same, with the weight in 0..1 of `LabelConsensus`; None if that is open.

    votes: labeller -> vote; weight_of: see `ConsensusRule.weigh`
    """
    signed = [weight_of.get(by, 1.0) * (1 if is_same else -1) for by, is_same in votes.items()]
    vote = sum(signed) / len(signed)
    backing = sum(1 for weight in signed if weight * vote > 0)
    return (vote > 0, min(1.0, abs(vote))) if vote and backing >= quorum else None


def list_agreeing_labellers(votes: Votes, pairs: Ids, same: NDArray[np.bool_]) -> list[str]:
    """List for each decided pair the first labeller, by name, who agrees with the decision; empty if nobody does.

    pairs: (P, 2) face pks; same: (P,)
    """
    labellers = []
    for (a, b), decision in zip(pairs.tolist(), same.tolist(), strict=True):
        of_pair = votes.get((min(a, b), max(a, b)), {})
        labellers.append(min((by for by, vote in of_pair.items() if vote == decision), default=""))
    return labellers


def _collect_votes(labels: Iterable[Sequence[Any]]) -> VotesByPair:
    """labels: (face_a, face_b, by, same), in the order in which they were given"""
    votes: VotesByPair = {}
    for face_a, face_b, by, same in labels:
        votes.setdefault((face_a, face_b), {})[by] = same
    return votes


def _iterate_labels(session: Session, pks: list[int]) -> Iterable[tuple[int, int, str, bool]]:
    for start in range(0, len(pks), LABELS_PER_QUERY):
        chunk = Label.pk.in_(select_ids(session, pks[start : start + LABELS_PER_QUERY]))
        rows = select(Label.face_a, Label.face_b, Label.by, Label.same).where(chunk, Label.withdrawn_at.is_(None))
        yield from session.execute(rows.order_by(Label.pk))
