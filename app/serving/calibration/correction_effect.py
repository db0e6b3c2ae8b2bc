"""What the correction of sources does to the distances of strangers, where a model has learned from the gallery.

People held out of a training were searched for among embeddings that nothing corrected. Their distances are carried
over by searches for, and pairs of, the faces of the gallery, with the corrections and without.
"""

from dataclasses import dataclass

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Embedding
from app.serving.loaded_index import LoadedIndex
from app.storage.embedding_codec import decode_embeddings
from ml import indexes
from ml.calibration import DistanceMap, draw_impostor_pairs
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import GalleryPeople, search_gallery
from ml.types import Ids, Rows

MAX_SEARCHES, MAX_PAIRS = 500, 50_000
SAMPLE_BYTES = 32 * 2**20
FACES_PER_QUERY = 1_000


@dataclass(frozen=True)
class CorrectionEffect:
    """How distances change. None: too few were measured. searches: person distances; pairs: of two faces"""

    searches: DistanceMap | None
    pairs: DistanceMap | None


def measure_correction_effect(session: Session, loaded: LoadedIndex, people: GalleryPeople) -> CorrectionEffect:
    """Compare embeddings as the model makes them with those of the index, on the faces of a gallery or a sample.

    people: the people of its faces, by their pks
    """
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.permutation(people.ids)[: max(100, SAMPLE_BYTES // (4 * loaded.dim))])
    pks, rows = _read_uncorrected(session, loaded, chosen)
    with loaded.lock.gen_rlock():  # one lock for both: the follower may take faces out between them
        pks, kept, _ = np.intersect1d(pks, loaded.index.ids(), assume_unique=True, return_indices=True)
        corrected = loaded.index.rows(pks)
    rows = rows[kept]
    owners = people.owners[np.searchsorted(people.ids, pks)]
    subjects = np.where(people.is_named[owners], owners, -1)
    sample = GalleryPeople.from_rows(pks, subjects, people.is_distractor[owners])
    probes = sample.sample(sample.is_named, MAX_SEARCHES, rng)
    metric, rule = loaded.index.metric, DecisionRule()
    searches = [search_gallery(indexes.build(pks, r, metric), sample, probes, rule) for r in (rows, corrected)]
    pairs = draw_impostor_pairs(subjects, MAX_PAIRS, 0)
    distances = [metric.pair_distances(r, pairs).astype(np.float64) for r in (rows, corrected)]
    return CorrectionEffect(DistanceMap.fit(*(s.stranger for s in searches)), DistanceMap.fit(*distances))


def _read_uncorrected(session: Session, loaded: LoadedIndex, pks: Ids) -> tuple[Ids, Rows]:
    """Return the pks, rising, and the (n, dim) embeddings of these faces, of those that have one."""
    query = select(Embedding.face_pk, Embedding.vector).where(
        Embedding.model_id == loaded.key.model_id, Embedding.task == loaded.key.task
    )
    stored: list[tuple[int, bytes]] = []
    for start in range(0, len(pks), FACES_PER_QUERY):
        part = pks[start : start + FACES_PER_QUERY].tolist()
        stored += [(pk, vector) for pk, vector in session.execute(query.where(Embedding.face_pk.in_(part)))]
    stored.sort()
    rows = decode_embeddings([vector for _, vector in stored], loaded.dim)
    return np.array([pk for pk, _ in stored], np.int64), rows
