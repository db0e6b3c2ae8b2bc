"""Choose the faces that search a gallery, and rank the gallery for them."""

import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.evaluation.protocols import Protocol
from ml.evaluation.report import rank_protocol
from ml.evaluation.retrieval import Ranked
from ml.types import Ids, Rows

MAX_QUERIES = 2000
MAX_QUERIES_PER_PERSON = 10


def choose_queries(people: Ids) -> Ids:
    """Choose the faces that search: at most ten of a person and 2,000 in all, the same each time.

    people: (N,) number of each face's person. Returns (Q,) indices, rising.
    """
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(len(people))
    order = shuffled[np.argsort(people[shuffled], kind="stable")]
    starts = np.flatnonzero(np.r_[True, np.diff(people[order]) != 0])
    turn = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    chosen = order[turn < MAX_QUERIES_PER_PERSON]
    return np.sort(rng.permutation(chosen)[:MAX_QUERIES])


def rank_gallery(
    rows: Rows,
    people: Ids,
    values: NDArray[np.float64],
    distractors: Rows,
    metric: Distance,
    queries: Ids,
    *,
    tolerance: float,
) -> Ranked:
    """Rank all faces and the distractors for each query, which is left out of its own search.

    rows: (N, d) embeddings; people: (N,) numbers of the people; values: (N,) what counts as the same, within the
    tolerance; distractors: (M, d) embeddings of nobody; queries: (Q,) indices of the faces that search
    """
    protocol = Protocol("held-out", people, np.empty(0, np.int64), queries, np.arange(len(rows)))
    return rank_protocol(rows, protocol, metric=metric, values=values, tolerance=tolerance, distractors=distractors)


def list_impostor_people(ranked: Ranked, people: Ids) -> Ids:
    """Return (n, 2) numbers of the two people of each impostor pair.

    people: (N,) of the ranked faces. Each distractor is a person of its own, whose number follows theirs.
    """
    ids = ranked.impostor_ids
    distractor = people.max(initial=0) + 1 + ids
    searched = people[np.minimum(ids, len(people) - 1)]
    other = np.where(ids < len(people), searched, distractor)
    return np.stack([ranked.impostor_of.astype(np.int64), other], axis=1)
