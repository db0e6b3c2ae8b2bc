"""Which cells and descriptors made the distances of the matches, from crops that are described again."""

from collections.abc import Mapping, Sequence

import numpy as np

from app.errors import NotFound
from app.search.criteria import Criteria, Criterion
from app.search.naming import Named
from app.search.schemas import Explanation, ExplanationPart, Grid
from app.storage.blob_store import Blobs
from ml import explanation
from ml.errors import Corrupt, NotLinear
from ml.images import decode_png
from ml.types import CropKind, Crops

GONE = "the stored crop of this face is gone"
OWN_GONE = "the stored crop of the face that was searched with is gone"


def explain(
    criteria: Criteria, blobs: Blobs, own: Mapping[CropKind, Crops] | None, faces: Sequence[Named]
) -> list[Explanation | str]:
    """One for each of these faces of the collection, or why there is none. Raises Busy.

    own: (1, ...) crops of the face that was searched with; None: they are gone.
    """
    if own is None:
        return [OWN_GONE] * len(faces)
    with criteria.first.slots.alone():
        crops = [crops_of(blobs, criteria.collection, face, kinds_of(criteria)) for face in faces]
        there = [c for c in crops if c is not None]
        try:
            by_task = [_parts(c, own, there) for c in criteria.each] if there else []
        except NotLinear as error:
            return [str(error)] * len(faces)
    merged = (_merged(told) for told in zip(*by_task, strict=True))
    return [GONE if c is None else next(merged) for c in crops]


def kinds_of(criteria: Criteria) -> list[CropKind]:
    """The kinds of crop that are described; the first is the one to show."""
    return list(dict.fromkeys(kind for c in criteria.each for kind in c.serving.generation.recipe.crops))


def crops_of(blobs: Blobs, collection: str, face: Named, kinds: Sequence[CropKind]) -> dict[CropKind, Crops] | None:
    """(1, ...) of each kind; None where one is gone."""
    try:
        names = {kind: Blobs.crop(face.image_id, face.number, kind) for kind in kinds}
        return {kind: decode_png(blobs.get(collection, name))[None] for kind, name in names.items()}
    except (NotFound, Corrupt):
        return None


def _parts(
    criterion: Criterion, own: Mapping[CropKind, Crops], others: Sequence[Mapping[CropKind, Crops]]
) -> list[Explanation]:
    """The distances of a task, as they count. Raises ml.NotLinear."""
    generation, task, factor = criterion.serving.generation, criterion.serving.task, criterion.factor
    rows = np.concatenate([generation.describe(crops) for crops in others])
    found = explanation.explain(generation, generation.describe(own)[0], rows, task)
    return [
        Explanation(
            distance=factor * told.distance,
            parts=[_part(part, task, factor) for part in told.parts],
            rest=factor * told.rest,
        )
        for told in found
    ]


def _part(part: explanation.DescriptorContribution, task: str, factor: float) -> ExplanationPart:
    grid = None
    if part.layout is not None:
        grid = Grid(crop=part.crop, rows=part.layout.rows, columns=part.layout.columns, size=part.layout.size)
    return ExplanationPart(
        task=task,
        descriptor=part.descriptor,
        contribution=factor * part.contribution,
        grid=grid,
        cells=None if part.cells is None else (factor * part.cells).tolist(),
    )


def _merged(told: Sequence[Explanation]) -> Explanation:
    """A sum of distances is made of the parts of all of them."""
    return Explanation(
        distance=sum(one["distance"] for one in told),
        parts=[part for one in told for part in one["parts"]],
        rest=sum(one["rest"] for one in told),
    )
