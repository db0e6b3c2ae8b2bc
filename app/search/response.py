"""Build the answer of a search from its matches, with the crops and explanations that `include` requests."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson
from fastapi import Response
from starlette.background import BackgroundTask

from app.db.immediate import require_session
from app.db.lookups import get_collection
from app.deps.shared_schemas import BoundingBox
from app.search.context import SearchContext
from app.search.criteria import Criteria, Criterion
from app.search.decision import AcceptanceThreshold
from app.search.enrolled_faces import PhotoFace, find_photo_faces, read_crop
from app.search.explanation import explain_matches, list_crop_kinds
from app.search.matching import SearchHits
from app.search.params import MAX_EXPLAINED_PER_PHOTO, SearchParams
from app.search.schemas import FaceResult, SearchOut, TaskShare, VerifyOut
from ml import images
from ml.types import CropKind, Crops


@dataclass(frozen=True)
class Query:
    """A query face: its box in the photo and its (1, ...) crops, or None if it has none"""

    box: BoundingBox | None = None
    crops: Mapping[CropKind, Crops] | None = None


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
) -> SearchOut:
    """Build the answer. Raises NotFound if the collection was deleted, Busy."""
    _check_collection(context, criteria, hits)
    faces = [
        FaceResult(
            bounding_box=query.box, decision=decision, subject=subject, matches=matches, corrected_by=corrected_by
        )
        for query, matches, (decision, subject), corrected_by in zip(
            queries, hits.matches, hits.decisions, hits.corrections, strict=True
        )
    ]
    if params.include:
        photo_faces = _find_photo_faces(context, hits)
        if "crop" in params.include:
            _add_crops(context, criteria, photo_faces, faces, queries)
        if "explanation" in params.include:
            _add_explanations(context, criteria, photo_faces, faces, queries)
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


def _find_photo_faces(context: SearchContext, hits: SearchHits) -> dict[str, PhotoFace]:
    """Return face id -> photo and number of the faces in the answer."""
    pks = {face.face_id: face.pk for face in hits.faces.values()}
    shown = {match["face_id"] for matches in hits.matches for match in matches}
    photo_faces = find_photo_faces(context.session, [pks[face_id] for face_id in shown])
    return {face_id: photo_faces[pks[face_id]] for face_id in shown if pks[face_id] in photo_faces}


def _add_crops(
    context: SearchContext,
    criteria: Criteria,
    photo_faces: Mapping[str, PhotoFace],
    faces: list[FaceResult],
    queries: Sequence[Query],
) -> None:
    kind = list_crop_kinds(criteria)[0]
    for face, query in zip(faces, queries, strict=True):
        if query.crops is not None:
            face["crop"] = base64.b64encode(images.encode_png(query.crops[kind][0])).decode()
        for match in face["matches"]:
            match["crop"] = read_crop(context.blobs, criteria.collection, photo_faces.get(match["face_id"]), kind)


def _add_explanations(
    context: SearchContext,
    criteria: Criteria,
    photo_faces: Mapping[str, PhotoFace],
    faces: list[FaceResult],
    queries: Sequence[Query],
) -> None:
    remaining = MAX_EXPLAINED_PER_PHOTO
    for face, query in zip(faces, queries, strict=True):
        matched = [photo_faces.get(match["face_id"]) for match in face["matches"]]
        results = explain_matches(criteria, context.blobs, query.crops, matched[:remaining])
        results += [f"only the first {MAX_EXPLAINED_PER_PHOTO} matches of an answer are explained"] * len(
            matched[remaining:]
        )
        remaining = max(0, remaining - len(matched))
        for match, result in zip(face["matches"], results, strict=True):
            if not isinstance(result, str) and criteria.is_compensated:
                result["rest"] += match["distance"] - result["distance"]
                result["distance"] = match["distance"]
            match["explanation"] = None if isinstance(result, str) else result
            if isinstance(result, str):
                match["unexplained"] = result
