"""Explain the distances of matches by descriptors and cells. The stored crops are described again for it."""

from collections.abc import Mapping, Sequence

import numpy as np

from app.errors import NotFound
from app.search.criteria import Criteria, Criterion
from app.search.enrolled_faces import PhotoFace
from app.search.schemas import ExplanationOut, ExplanationPart, GridOut
from app.storage.blob_store import Blobs
from ml import explanation
from ml.errors import Corrupt, NotLinear
from ml.images import decode_png
from ml.types import CropKind, Crops

CROP_MISSING = "the stored crop of this face is missing"
QUERY_CROP_MISSING = "the stored crop of the query face is missing"


def explain_matches(
    criteria: Criteria, blobs: Blobs, query: Mapping[CropKind, Crops] | None, faces: Sequence[PhotoFace | None]
) -> list[ExplanationOut | str]:
    """Return for each of these enrolled faces an explanation, or the reason why there is none. Raises Busy.

    query: (1, ...) crops of the query face; None means that they are missing
    """
    if query is None:
        return [QUERY_CROP_MISSING] * len(faces)
    slots = criteria.first.slots
    assert slots is not None, "explanations are computed in threads"
    with slots.reserve():
        crops = [read_crops(blobs, criteria.collection, face, list_crop_kinds(criteria)) for face in faces]
        readable = [c for c in crops if c is not None]
        try:
            by_task = [_explain_task(c, query, readable) for c in criteria.tasks] if readable else []
        except NotLinear as error:
            return [str(error)] * len(faces)
    merged = (_merge_explanations(of_tasks) for of_tasks in zip(*by_task, strict=True))
    return [CROP_MISSING if c is None else next(merged) for c in crops]


def list_crop_kinds(criteria: Criteria) -> list[CropKind]:
    """List the kinds of crop that the models describe. An answer shows the first."""
    return list(dict.fromkeys(kind for c in criteria.tasks for kind in c.served.model.recipe.crops))


def read_crops(
    blobs: Blobs, collection: str, face: PhotoFace | None, kinds: Sequence[CropKind]
) -> dict[CropKind, Crops] | None:
    """Return the (1, ...) stored crops of each kind; None if the face or one of them is missing."""
    if face is None:
        return None
    try:
        names = {kind: Blobs.crop(*face, kind) for kind in kinds}
        return {kind: decode_png(blobs.get(collection, name))[None] for kind, name in names.items()}
    except (NotFound, Corrupt):
        return None


def _explain_task(
    criterion: Criterion, query: Mapping[CropKind, Crops], others: Sequence[Mapping[CropKind, Crops]]
) -> list[ExplanationOut]:
    """Explain the distances of one task, multiplied by its factor. Raises ml.NotLinear."""
    model, task, factor = criterion.served.model, criterion.served.task, criterion.factor
    rows = np.concatenate([model.describe(crops) for crops in others])
    return [
        ExplanationOut(
            distance=factor * result.distance,
            parts=[_describe_part(part, task, factor) for part in result.parts],
            rest=factor * result.rest,
        )
        for result in explanation.explain_distances(model, model.describe(query)[0], rows, task)
    ]


def _describe_part(part: explanation.DescriptorContribution, task: str, factor: float) -> ExplanationPart:
    grid = None
    if part.layout is not None:
        grid = GridOut(crop=part.crop, rows=part.layout.rows, columns=part.layout.columns, size=part.layout.size)
    return ExplanationPart(
        task=task,
        descriptor=part.descriptor,
        contribution=factor * part.contribution,
        grid=grid,
        cells=None if part.cells is None else (factor * part.cells).tolist(),
    )


def _merge_explanations(explanations: Sequence[ExplanationOut]) -> ExplanationOut:
    """Merge the explanations of several tasks into that of the sum of their distances."""
    return ExplanationOut(
        distance=sum(one["distance"] for one in explanations),
        parts=[part for one in explanations for part in one["parts"]],
        rest=sum(one["rest"] for one in explanations),
    )
