"""Decide the labelled pairs of a collection from its newest labels."""

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from app.db.tables import Face, Label
from app.galleries.label_consensus import ConsensusRule, LabelConsensus, decide_consensus, read_rule

MAX_LABELS = 50_000
"""Newest labels that are read."""

Replaced = tuple[str, Collection[tuple[int, int]]]
"""A labeller, and pairs of face pks, the smaller first, on which their labels are about to be replaced."""


def read_collection_consensus(
    session: Session, collections: Collection[str], task: str, replaced_by: Replaced | None = None
) -> LabelConsensus:
    """Decide the pairs of gallery faces of these collections, without the labels that are about to be replaced.

    The rule is that of their deployments; of several, the one that demands most.
    """
    first, second = aliased(Face), aliased(Face)
    query = select(Label.face_a, Label.face_b, Label.by, Label.same).where(
        Label.task == task, Label.withdrawn_at.is_(None)
    )
    for face, end in ((first, Label.face_a), (second, Label.face_b)):
        is_of_gallery = face.collection_id.in_(collections) & (face.role == "gallery")
        query = query.join(face, (face.pk == end) & is_of_gallery)
    votes: dict[tuple[int, int], dict[str, bool]] = {}
    for face_a, face_b, by, same in session.execute(query.order_by(Label.pk.desc()).limit(MAX_LABELS)):
        votes.setdefault((face_a, face_b), {}).setdefault(by, same)  # the newest label of a labeller counts
    if replaced_by is not None:
        labeller, pairs = replaced_by
        for pair in pairs:
            votes.get(pair, {}).pop(labeller, None)
    rules = [read_rule(session, collection, task) for collection in collections]
    strictest = ConsensusRule(
        quorum=max((rule.quorum for rule in rules), default=1), by_agreement=any(rule.by_agreement for rule in rules)
    )
    return decide_consensus({pair: of_pair for pair, of_pair in votes.items() if of_pair}, strictest)
