"""Have the challenger answer searches that the champion has answered."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from app.db.session import reading
from app.search.context import SearchContext, embed_faces
from app.search.criteria import Criteria, choose_threshold
from app.search.enrolled_faces import filter_faces, get_embeddings
from app.search.matching import SearchHits, find_matches
from app.search.params import QuerySearchParams, SearchParams
from app.search.shadow.labelled_pairs import judge_labels
from app.search.shadow.outcome import MAX_COMPARED_PEOPLE, SearchOutcome, compare_outcomes, list_outcomes
from app.serving.deployments import ServedModel
from app.serving.engine import Engine
from app.serving.shadow.comparison_queue import QueuedSearch
from app.serving.shadow.totals import ModelPair, Sums, add_sums
from ml.types import AlignedFace, Rows


@dataclass(frozen=True, eq=False)
class ShadowedSearch:
    """A search that the champion has answered, with what the challenger needs to answer it too.

    outcomes: of the champion's answer, one for each query face
    faces: the faces of a photo; query_face: the pk of an enrolled face; neither for a search by vector
    """

    pair: ModelPair
    params: SearchParams
    outcomes: list[SearchOutcome]
    faces: Sequence[AlignedFace] = ()
    query_face: int | None = None


def queue_comparison(
    engine: Engine,
    criteria: Criteria,
    params: SearchParams,
    hits: SearchHits,
    faces: Sequence[AlignedFace],
    query_face: int | None,
) -> None:
    """Queue the comparison of a search that the champion has answered. It never waits."""
    deployment = criteria.first.deployment
    challenger = deployment.pointers["challenger"]
    assert challenger is not None, "a search without a challenger is never drawn"
    pair = ModelPair(deployment.collection, deployment.task, criteria.first.model.id, challenger)
    search = ShadowedSearch(pair, params, list_outcomes(hits, params.limit), faces, query_face)
    compare = partial(compare_search, engine, search)
    engine.comparisons.submit(QueuedSearch(pair, len(search.outcomes), compare))


def compare_search(engine: Engine, search: ShadowedSearch) -> Sums:
    """Answer a search by the challenger, and return what the comparison adds to the totals.

    A vector belongs to the champion's space, so searches by vector are only counted.
    Raises NotFound, Busy, Conflict, ml.LikenessError if the challenger cannot answer it.
    """
    pair, pk = search.pair, search.query_face
    if not search.faces and pk is None:
        return {"vectors": len(search.outcomes)}
    limit = min(search.params.limit, MAX_COMPARED_PEOPLE)
    params = search.params.model_copy(update={"limit": limit, "m": None, "candidates": None, "include": []})
    with (
        engine.use(pair.collection, pair.task, pair.challenger) as served,
        reading(engine.resources.database) as session,
    ):
        criteria = Criteria.of({served: 1.0})
        rows = get_embeddings(session, served, [pk]) if pk is not None else _embed(served, search)
        allowed = filter_faces(session, pair.collection, params.filter)
        threshold = choose_threshold(criteria, params)
        context = SearchContext(engine, session)
        hits = find_matches(context, criteria, [rows], params, threshold, allowed, excluded=pk)
        compared = zip(search.outcomes, list_outcomes(hits, limit), strict=True)
        sums: Sums = {}
        for outcomes in compared:
            sums = add_sums(sums, compare_outcomes(*outcomes))
        if pk is not None:
            with engine.use(pair.collection, pair.task, pair.champion) as champion:
                sums = add_sums(sums, judge_labels(session, champion, served, pk))
    return sums


def _embed(served: ServedModel, search: ShadowedSearch) -> Rows:
    source = search.params.source if isinstance(search.params, QuerySearchParams) else None
    return embed_faces(served, search.faces, [source] * len(search.faces))
