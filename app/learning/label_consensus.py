"""What the labels say together, by a stated rule: each labeller's latest word, then the majority among labellers.

A tie settles nothing, and so does a majority of fewer labellers than the quorum. Contradictions are kept in the table.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Select, Subquery, func, select
from sqlalchemy.orm import Session

from app.db.tables import Label
from ml.types import Ids, Rows

CHUNK = 10_000


@dataclass(frozen=True)
class Rule:
    """weights: labeller -> how much their word counts, 1 where not named; quorum: labellers that a majority needs."""

    weights: Mapping[str, float] = field(default_factory=dict)
    quorum: int = 1


@dataclass(frozen=True, eq=False)
class Settled:
    """pairs: (P, 2) face pks, the smaller first, rising; same: (P,); weights: (P,) in 0..1, the mean signed vote.

    unsettled: pairs that were labelled and are not here.
    """

    pairs: Ids
    same: NDArray[np.bool_]
    weights: Rows
    unsettled: int = 0

    def __len__(self) -> int:
        return len(self.pairs)


def latest() -> Subquery:
    """(pk, task, face_a, face_b) of every label that stands: each labeller's last word on a pair, not withdrawn."""
    grouped = (Label.task, Label.face_a, Label.face_b)
    standing = select(func.max(Label.pk).label("pk"), *grouped).where(Label.withdrawn_at.is_(None))
    return standing.group_by(*grouped, Label.by).subquery()


def contradicted() -> Select[tuple[str, int, int]]:
    """(task, face_a, face_b) of the pairs of which labellers say different things."""
    last = latest()
    told = select(last.c.task, last.c.face_a, last.c.face_b).join(Label, Label.pk == last.c.pk)
    return told.group_by(last.c.task, last.c.face_a, last.c.face_b).having(func.count(Label.same.distinct()) > 1)


def standing(session: Session, task: str) -> list[int]:
    """The pks of a task's labels that stand now, rising."""
    last = latest()
    return list(session.scalars(select(last.c.pk).where(last.c.task == task).order_by(last.c.pk)))


def settle(session: Session, label_pks: Collection[int], rule: Rule = Rule()) -> Settled:
    """The pairs that these labels of one task settle. Of one labeller's words on a pair the last counts.

    A label that was withdrawn or removed since is left out.
    """
    votes: dict[tuple[int, int], dict[str, bool]] = {}
    for face_a, face_b, by, same in _told(session, sorted(label_pks)):
        votes.setdefault((face_a, face_b), {})[by] = same
    return decide(votes, rule)


def decide(votes: Mapping[tuple[int, int], Mapping[str, bool]], rule: Rule = Rule()) -> Settled:
    """The rule itself, on pair -> labeller -> same."""
    pairs, same, weights = [], [], []
    for pair in sorted(votes):
        signed = [(rule.weights.get(by, 1.0) * (1 if said else -1), said) for by, said in votes[pair].items()]
        vote = sum(weight for weight, _ in signed) / len(signed)
        backing = sum(1 for _, said in signed if said == (vote > 0))
        if vote and backing >= rule.quorum:
            pairs.append(pair)
            same.append(vote > 0)
            weights.append(abs(vote))
    return Settled(
        np.array(pairs, np.int64).reshape(-1, 2),
        np.array(same, np.bool_),
        np.array(weights, np.float32),
        len(votes) - len(pairs),
    )


def labellers(session: Session, label_pks: Collection[int], pairs: Ids, same: NDArray[np.bool_]) -> list[str]:
    """(P,) of each settled pair of face pks, the first by name of those whose last word on it is what was settled."""
    said: dict[tuple[int, int], dict[str, bool]] = {}
    for face_a, face_b, by, alike in _told(session, sorted(label_pks)):
        said.setdefault((face_a, face_b), {})[by] = alike
    found = []
    for (a, b), alike in zip(pairs.tolist(), same.tolist(), strict=True):
        votes = said.get((min(a, b), max(a, b)), {})
        found.append(min((by for by, vote in votes.items() if vote == alike), default=""))
    return found


def _told(session: Session, pks: list[int]) -> Iterable[tuple[int, int, str, bool]]:
    for start in range(0, len(pks), CHUNK):
        part = Label.pk.in_(pks[start : start + CHUNK])
        chosen = select(Label.face_a, Label.face_b, Label.by, Label.same).where(part, Label.withdrawn_at.is_(None))
        yield from session.execute(chosen.order_by(Label.pk))
