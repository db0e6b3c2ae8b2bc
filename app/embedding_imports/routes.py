"""Import vectors that were made elsewhere, as faces."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from app.db.field_types import CollectionName
from app.deps import ResourcesDep, WriteDep
from app.deps.audit import audit_as
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.job_response import JobOut, point_to_job
from app.deps.photos import BINARY
from app.deps.problems import declare_problems
from app.deps.roles import ARCHIVE, OPERATOR
from app.deps.scopes import COLLECTION
from app.embedding_imports import service
from app.embedding_imports.streaming import ReceivedDep

router = APIRouter(prefix="/v1/collections", tags=["faces"], route_class=AnswerRoute)
CollectionId = Annotated[CollectionName, Path(alias="collection")]
FORM = {
    "type": "object",
    "properties": {
        "vectors": BINARY | {"description": "a .npy file of (n, d) float32 or float16"},
        "table": BINARY
        | {"description": "CSV or JSON lines: subject, external_image_id, role, source, metadata; one row a vector"},
    },
    "required": ["vectors"],
}
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "a .npy file, and a table with a row for each vector; or the .npy file alone",
        "content": {
            "multipart/form-data": {
                "schema": FORM,
                "example": {"vectors": "arcface.npy", "table": "people.csv"},
            },
            "application/octet-stream": {"schema": {}},
        },
    }
}
PROBLEMS = declare_problems((409, "ExternalDescriptor"), (422, "InvalidVectors"))


@router.post(
    "/{collection}/faces:import-embeddings",
    status_code=202,
    summary="Import many vectors",
    openapi_extra={**OPERATOR, **COLLECTION, **ARCHIVE, **BODY, **PROBLEMS} | audit_as("face.import"),
)
def import_embeddings(
    collection: CollectionId, received: ReceivedDep, resources: ResourcesDep, session: WriteDep, response: Response
) -> JobOut:
    """Each vector becomes a face. The collection must have a `descriptor`, which says how long its vectors are.

    The job lists as items the vectors that are refused, each with its reason: `NOT_FINITE`, `OUT_OF_RANGE`,
    `ZERO_VECTOR`, `DUPLICATE` (enrolled under another subject or role), `NO_CONSENT`, `RETENTION_ENDED`, or `INVALID_`
    and the field of the table. It succeeds once the serving index holds the faces. A file that is no plain array of
    numbers, or a table with another number of rows, is refused as a whole.
    """
    job = service.accept_vectors(resources, session, collection, received)
    point_to_job(response, job)
    return JobOut.of(job)
