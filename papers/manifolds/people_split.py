"""The data of 001's tables of unseen classes: training on CelebA10k, testing on LFW."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.evaluation.clustering import cluster_faces, nmi
from ml.evaluation.protocols import number_people
from ml.evaluation.retrieval import Faces, rank
from ml.types import Ids, Rows
from papers.harness.photos import Photos
from papers.harness.table_types import ComputationOutput

LOOKALIKE_COSINE = 0.5
"""People in CelebA10k with at least this MobileFaceNet cosine to a face in LFW are left out of training."""
BLOCK_ROWS = 1000


@dataclass(frozen=True, eq=False)
class PeopleSplit:
    """Training photos of CelebA10k and queries of LFW.

    taught: (T,) indexes in CelebA10k; people: (T,) their people, from 0; alike: people left out because they look like
        somebody in LFW; queries: (Q,) indexes in LFW of all people with enough photos; query_people: (Q,)
    """

    taught: Ids
    people: Ids
    alike: int
    queries: Ids
    query_people: Ids


@lru_cache(maxsize=4)
def split_people(photos: Photos, min_photos: int) -> PeopleSplit:
    """Make the split. min_photos: photos that a person needs in LFW to be tested"""
    teachers, tested = (number_people(photos.names(one)) for one in ("celeba", "lfw"))
    known = _known(photos.rows("celeba", "mobilefacenet"), photos.rows("lfw", "mobilefacenet"))
    out = np.isin(teachers, teachers[known])
    taught = np.flatnonzero(~out)
    tested_faces = np.flatnonzero(np.bincount(tested)[tested] >= min_photos)
    return PeopleSplit(
        taught,
        _numbered(teachers[taught]),
        len(np.unique(teachers[out])),
        tested_faces,
        _numbered(tested[tested_faces]),
    )


def _known(rows: Rows, others: Rows) -> NDArray[np.bool_]:
    """Return (N,) whether a row has at least cosine LOOKALIKE_COSINE to one of the others; both have unit length."""
    parts = [
        (rows[at : at + BLOCK_ROWS] @ others.T).max(1) >= LOOKALIKE_COSINE for at in range(0, len(rows), BLOCK_ROWS)
    ]
    return np.concatenate(parts)


def _numbered(people: Ids) -> Ids:
    return np.unique(people, return_inverse=True)[1].astype(np.int64)


def measure_separation(embedded: Rows, split: PeopleSplit) -> ComputationOutput:
    """Evaluate (Q, d) embeddings of the queries.

    Record: `nmi`. Arrays: `first` (Q,), rank of the nearest photo of the same person; `whose` (Q,) people
    """
    faces = Faces(embedded, split.query_people.astype(np.float64), split.queries)
    record: dict[str, Any] = {
        "nmi": nmi(split.query_people, cluster_faces(embedded, int(split.query_people.max()) + 1), resamples=1).value
    }
    return record, {"first": rank(faces, faces, impostors=0).first, "whose": split.query_people}
