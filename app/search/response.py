"""From matches to an answer, with the crops and explanations that were asked for."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.db.tables import Collection
from app.deps.shapes import BoundingBox
from app.errors import NotFound
from app.search import naming
from app.search.acceptance import AcceptanceThreshold
from app.search.asked import EXPLAINED_IN_ALL, Asked
from app.search.criteria import Criteria, Criterion
from app.search.desk import Desk
from app.search.explaining import explain, kinds_of
from app.search.matching import Hits
from app.search.schemas import Answer, FaceResult, Weighed
from ml import images
from ml.types import CropKind, Crops


@dataclass(frozen=True)
class Query:
    """A face that is searched with: where it is in the photo, and its (1, ...) crops; None where it has none."""

    box: BoundingBox | None = None
    crops: Mapping[CropKind, Crops] | None = None


def build_answer(
    desk: Desk,
    criteria: Criteria,
    asked: Asked,
    threshold: AcceptanceThreshold,
    hits: Hits,
    queries: Sequence[Query],
) -> Answer:
    """The answer, with what `include` asks for. Raises NotFound, Busy."""
    _still_there(desk, criteria, hits)
    faces = [
        FaceResult(bounding_box=query.box, decision=decision, subject=subject, matches=matches)
        for query, matches, (decision, subject) in zip(queries, hits.matches, hits.decisions, strict=True)
    ]
    if "crop" in asked.include:
        _add_crops(desk, criteria, hits, faces, queries)
    if "explanation" in asked.include:
        _add_explanations(desk, criteria, hits, faces, queries)
    answer = Answer(
        faces=faces,
        model=criteria.model,
        index_generation=criteria.index_generation,
        task=asked.task if criteria.mixed else criteria.first.task,
        m=hits.m,
        fraction=hits.fraction,
        calibrated=criteria.facts.calibration is not None,
        threshold=threshold.description,
    )
    if criteria.mixed:
        answer["tasks"] = [_weighed(c, m) for c, m in zip(criteria.each, hits.ms, strict=True)]
        answer["complete"] = hits.settled
    return answer


def _weighed(criterion: Criterion, m: int) -> Weighed:
    serving = criterion.serving
    return Weighed(
        task=serving.task,
        share=criterion.share,
        scale=criterion.scale,
        model=serving.generation.id,
        index_generation=serving.index_generation,
        m=m,
    )


def _still_there(desk: Desk, criteria: Criteria, hits: Hits) -> None:
    """Where nothing was found at all, the collection may be gone and the follower not know it yet."""
    if not hits.known and desk.session.get(Collection, criteria.collection) is None:
        raise NotFound(f"no collection {criteria.collection!r}")


def _add_crops(desk: Desk, criteria: Criteria, hits: Hits, faces: list[FaceResult], queries: Sequence[Query]) -> None:
    blobs, kind, named = desk.engine.resources.blobs, kinds_of(criteria)[0], hits.named
    for face, query in zip(faces, queries, strict=True):
        if query.crops is not None:
            face["crop"] = base64.b64encode(images.encode_png(query.crops[kind][0])).decode()
        for found in face["matches"]:
            found["crop"] = naming.crop(blobs, criteria.collection, named[found["face_id"]], kind)


def _add_explanations(
    desk: Desk, criteria: Criteria, hits: Hits, faces: list[FaceResult], queries: Sequence[Query]
) -> None:
    left, named = EXPLAINED_IN_ALL, hits.named
    for face, query in zip(faces, queries, strict=True):
        here = [named[found["face_id"]] for found in face["matches"]]
        told = explain(criteria, desk.engine.resources.blobs, query.crops, here[:left])
        told += [f"only the first {EXPLAINED_IN_ALL} matches of an answer are explained"] * len(here[left:])
        left = max(0, left - len(here))
        for found, one in zip(face["matches"], told, strict=True):
            found["explanation"] = None if isinstance(one, str) else one
            if isinstance(one, str):
                found["unexplained"] = one
