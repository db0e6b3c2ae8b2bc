"""Build the answer of a search from its matches, with the crops and explanations that `include` requests."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import orjson
from fastapi import Response
from starlette.background import BackgroundTask

from app.db.immediate import require_session
from app.db.lookups import get_collection
from app.deps.shared_schemas import BoundingBox
from app.search.context import SearchContext
from app.search.criteria import Criteria, Criterion
from app.search.decision import AcceptanceThreshold
from app.search.enrolled_faces import find_photo_faces, read_crop
from app.search.explanation import explain_matches, list_crop_kinds
from app.search.matching import SearchHits
from app.search.params import MAX_EXPLAINED_PER_PHOTO, SearchParams
from app.search.schemas import ExplanationOut, FaceResult, SearchOut, TaskShare, VerifyOut
from ml import images
from ml.types import CropKind, Crops

NOT_EXPLAINED = f"only the first {MAX_EXPLAINED_PER_PHOTO} matches of an answer are explained"
CAME_MEANWHILE = "this match came while others were explained; search again"


@dataclass(frozen=True)
class Query:
    """A query face: its box in the photo and its (1, ...) crops, or None if it has none"""

    box: BoundingBox | None = None
    crops: Mapping[CropKind, Crops] | None = None


@dataclass(frozen=True)
class IncludedParts:
    """What `include` adds to the matches of one query: face id -> its crop, and its explanation or why it has none."""

    crops: Mapping[str, str | None]
    explanations: Mapping[str, ExplanationOut | str]

    @property
    def face_ids(self) -> set[str]:
        return self.crops.keys() | self.explanations.keys()


def collect_included(
    context: SearchContext, criteria: Criteria, params: SearchParams, hits: SearchHits, queries: Sequence[Query]
) -> list[IncludedParts]:
    """Read crops and explain distances, which may take seconds. Raises Busy."""
    pks = {face.face_id: face.pk for face in hits.faces.values()}
    matched = [[match["face_id"] for match in matches] for matches in hits.matches]
    stored = find_photo_faces(context.session, [pks[face] for face in dict.fromkeys(chain.from_iterable(matched))])
    remaining, included = MAX_EXPLAINED_PER_PHOTO, list[IncludedParts]()
    for query, face_ids in zip(queries, matched, strict=True):
        photo_faces = [stored.get(pks[face]) for face in face_ids]
        crops, explanations = dict[str, str | None](), dict[str, ExplanationOut | str]()
        if "crop" in params.include:
            kind = list_crop_kinds(criteria)[0]
            read = (read_crop(context.blobs, criteria.collection, face, kind) for face in photo_faces)
            crops = dict(zip(face_ids, read, strict=True))
        if "explanation" in params.include:
            results = explain_matches(criteria, context.blobs, query.crops, photo_faces[:remaining])
            explanations = dict(zip(face_ids, results, strict=False))
            explanations |= dict.fromkeys(face_ids[remaining:], NOT_EXPLAINED)
            remaining = max(0, remaining - len(face_ids))
        included.append(IncludedParts(crops, explanations))
    return included


def have_all(included: Sequence[IncludedParts], hits: SearchHits) -> bool:
    """Whether what was collected covers all matches of a later search."""
    pairs = zip(included, hits.matches, strict=True)
    return all(match["face_id"] in parts.face_ids for parts, matches in pairs for match in matches)


def json_response(context: SearchContext, answer: SearchOut | VerifyOut) -> Response:
    """Serialise an answer without FastAPI's validation, since it may have thousands of matches."""
    background = BackgroundTask(context.finish) if context.after_answer else None
    return Response(
        serialise(answer), media_type="application/json", headers=describe_model(answer), background=background
    )


def serialise(answer: SearchOut | VerifyOut) -> bytes:
    """Return the answer as JSON."""
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def describe_model(answer: SearchOut | VerifyOut) -> dict[str, str]:
    """Return the headers that name what answered."""
    return {"X-Model": answer["model"], "X-Index-Generation": answer["index_generation"]}


def build_answer(
    context: SearchContext,
    criteria: Criteria,
    params: SearchParams,
    threshold: AcceptanceThreshold,
    hits: SearchHits,
    queries: Sequence[Query],
    inclusions: Sequence[IncludedParts] | None = None,
) -> SearchOut:
    """Build the answer. Raises NotFound if the collection was deleted.

    inclusions: of each query, what `include` adds
    """
    _check_collection(context, criteria, hits)
    faces = [
        FaceResult(
            bounding_box=query.box, decision=decision, subject=subject, matches=matches, corrected_by=corrected_by
        )
        for query, matches, (decision, subject), corrected_by in zip(
            queries, hits.matches, hits.decisions, hits.corrections, strict=True
        )
    ]
    for face, query, added in zip(faces, queries, inclusions or (), strict=inclusions is not None):
        _include(criteria, params, face, query, added)
    answer = SearchOut(
        faces=faces,
        model=criteria.model_ids,
        index_generation=criteria.index_generation,
        task=params.task if criteria.is_mix else criteria.first.task,
        m=max(hits.cells_probed),
        fraction=sum(hits.fractions) / max(1, len(hits.fractions)),
        calibrated=criteria.scores.calibration is not None,
        threshold=threshold.description,
    )
    if criteria.is_mix:
        answer["tasks"] = [_describe_task_share(c, m) for c, m in zip(criteria.tasks, hits.cells_probed, strict=True)]
        answer["complete"] = hits.is_complete
    return answer


def _describe_task_share(criterion: Criterion, m: int) -> TaskShare:
    served = criterion.served
    return TaskShare(
        task=served.task,
        share=criterion.share,
        scale=criterion.scale,
        model=served.model.id,
        index_generation=served.index_generation,
        m=m,
    )


def _check_collection(context: SearchContext, criteria: Criteria, hits: SearchHits) -> None:
    """Raises NotFound if a search without results is of a collection that was deleted, which followers notice later."""
    if not hits.faces:
        get_collection(require_session(context.session), criteria.collection)


def _include(criteria: Criteria, params: SearchParams, face: FaceResult, query: Query, added: IncludedParts) -> None:
    """Add crops and explanations to the matches of a query. Matches that have come since have none."""
    if "crop" in params.include:
        if query.crops is not None:
            face["crop"] = base64.b64encode(images.encode_png(query.crops[list_crop_kinds(criteria)[0]][0])).decode()
        for match in face["matches"]:
            match["crop"] = added.crops.get(match["face_id"])
    if "explanation" in params.include:
        for match in face["matches"]:
            result = added.explanations.get(match["face_id"], CAME_MEANWHILE)
            match["explanation"] = None if isinstance(result, str) else result
            if isinstance(result, str):
                match["unexplained"] = result
            elif criteria.is_compensated:
                result["rest"] += match["distance"] - result["distance"]
                result["distance"] = match["distance"]
