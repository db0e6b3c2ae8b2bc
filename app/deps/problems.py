"""The problems that operations may answer with: status, code, meaning and an example of the detail.

Routes declare their own problems with `declare_problems`; `app.document` derives the others.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from app.db.examples import FACE
from app.errors import AppError, describe_problem

Refusal = tuple[int, str]
MEDIA_TYPE = "application/problem+json"
REQUEST_ID = "4f1d2a0b9c8e7f65"

KNOWN_PROBLEMS: dict[Refusal, tuple[str, str]] = {
    (400, "InvalidRequest"): ("the body cannot be parsed", "There was an error parsing the body"),
    (401, "AccessDenied"): ("there is no key, or it is unknown or revoked", "this key is unknown or was revoked"),
    (403, "AccessDenied"): (
        "the key lacks the role, or may not do this because it is bound to collections",
        "this operation needs the role operator; the key has the role reader",
    ),
    (404, "ResourceNotFound"): ("the path, the query or the body names something unknown", "no collection 'staff'"),
    (404, "UnknownTask"): (
        "no model serves the task in the collection",
        "collection 'staff' has no model for the task 'age'",
    ),
    (404, "UnknownModel"): (
        "no pointer of the collection names the model",
        "'m7' is not deployed in 'staff'; deployed: champion m6",
    ),
    (405, "InvalidRequest"): ("the path has no such method; `Allow` lists those that it has", "Method Not Allowed"),
    (408, "RequestTimeout"): (
        "the headers or the body arrive too slowly; the connection is closed",
        "the headers were not complete within 10 seconds",
    ),
    (409, "ResourceInUse"): ("the request conflicts with the current state", "model m7 is archived"),
    (409, "RequestInProgress"): (
        "an earlier request with this Idempotency-Key is not answered yet",
        "a request with this Idempotency-Key is in progress; try again",
    ),
    (409, "AnswerErased"): (
        "the request was carried out before; its answer named a face or a person erased since",
        "this request was carried out; its answer named a face or a person erased since, and is not repeated",
    ),
    (409, "SecretNotStored"): (
        "the request was carried out before; `key_id` names the key, whose secret is not stored",
        "this request was carried out; its answer held a secret, which is not stored",
    ),
    (409, "DuplicateWithOtherSubject"): (
        "the photo is enrolled under another subject or role; `face_id` names that face",
        "this photo is enrolled under another subject or role; change or delete that face first",
    ),
    (409, "EnrolmentNotAllowed"): (
        "the person has refused consent, has not given it where it is required, or is not retained any more; `reason` "
        "says which",
        "no face may be given to subject 'ada': consent is refused or was never recorded; change the subject first, if "
        "that is right",
    ),
    (409, "NotCalibrated"): (
        "the request states a false-match rate or several tasks, and too few pairs were measured for it",
        "no false-match rate is known here yet: more faces, and subjects with two or more faces, are needed",
    ),
    (409, "TaskDisabled"): ("the task is off", "the task age is off; an administrator can switch it on"),
    (409, "NotInstalled"): (
        "the server lacks a file or library that the model needs",
        "no ONNX manifest at recogniser.json; docs/use/recognisers.md says how to write one",
    ),
    (409, "ExternalDescriptor"): (
        "the collection holds imported vectors and the request needs photos, or the other way round",
        "the collection holds imported vectors (arcface-r100, 512 numbers), which no photo can be compared with. "
        "Import vectors with faces:import-embeddings, and search with search:by-embedding",
    ),
    (409, "CropMissing"): (
        "stored faces lack the kind of crop that the recogniser describes",
        "12 of 2,400 faces of 'staff' have no stored crop of the kind 'colour', which sface describes",
    ),
    (409, "ModelDamaged"): (
        "the stored files of the model are damaged",
        "model m5 is damaged and cannot serve: the model m5 was altered: embedder.json. Restore its folder from a "
        "backup, or publish another model",
    ),
    (409, "CannotForget"): (
        "the model builds on something that may have learned from the same people",
        "model m7 continues m6, which may have learned from the same people. Refit that one, and train again",
    ),
    (409, "TooManySnapshots"): (
        "as many snapshots are kept as the settings allow",
        "10 snapshots are kept, as many as LIKENESS_MAX_SNAPSHOTS allows; delete one first",
    ),
    (412, "PreconditionFailed"): (
        "If-Match names another version than the current `version`",
        "the deployment is at version 4, not 3: read it again",
    ),
    (413, "RequestTooLarge"): (
        "the body has too many bytes",
        "the body may have 33,554,432 bytes; send less, or raise the limit in the settings",
    ),
    (422, "InvalidParameter"): (
        "a value is not valid; `errors` lists them",
        "body.limit: Input should be less than or equal to 200",
    ),
    (422, "InvalidPaginationToken"): (
        "the `next_token` is not valid",
        "next_token was not made by this service for this list and order",
    ),
    (422, "IdempotencyKeyReused"): (
        "an earlier, different request had this Idempotency-Key",
        "this Idempotency-Key was sent with another request",
    ),
    (422, "InvalidRequest"): (
        "the form is malformed or has no part `file`, or the body is not complete",
        "the form has no part named `file`",
    ),
    (422, "InvalidImageFormat"): (
        "the file is not a supported picture, or is damaged, or is not valid base64",
        "the file is not a JPEG, PNG, WebP or BMP picture",
    ),
    (422, "ImageTooLarge"): (
        "the picture exceeds the limit of bytes or pixels",
        "the photo is 20000 x 4000 pixels; at most 50,000,000 pixels in total are allowed",
    ),
    (422, "PhotoFailed"): (
        "the service raised an error over this photo, which is in the log",
        "the service cannot analyse this photo, which raised an error; convert it, or send another",
    ),
    (422, "NoFace"): ("no face was found in the photo", "no face was found in the photo"),
    (422, "InvalidArchive"): (
        "the file is not an archive",
        "the archive is refused: its bytes are neither tar, tar.gz nor zip",
    ),
    (422, "InvalidVectors"): (
        "the file is no array of vectors that the collection can hold, or its table has another number of rows",
        "the vectors are no .npy file that can be imported: it has 3 dimensions; two are needed, one row a face",
    ),
    (422, "UnknownComponent"): (
        "no method or descriptor has this name; the detail lists the known names",
        "no method is named 'magic'; there are: clml, cpmtml, ldml, wpca",
    ),
    (422, "UnknownTask"): ("the task is unknown, or the model lacks it", "model lbp-l2 serves identity, not age"),
    (422, "TaskDisabled"): ("the task is off", "the task 'age' is off; an administrator can switch it on"),
    (422, "ContradictoryAnswer"): (
        "a face is named both as a member and as an outlier",
        f"face {FACE} is both a member and an outlier",
    ),
    (422, "ReasonRequired"): ("an override has no reason", "an override needs a reason, which is recorded"),
    (422, "ResourceNotFound"): ("no label is valid: a face does not exist", f"no face {FACE}"),
    (422, "SameFace"): ("no label is valid: a face is paired with itself", f"face {FACE} cannot be paired with itself"),
    (429, "TooManyRequests"): (
        "the key or the address sends too many requests, or the address has sent too many wrong keys",
        "this key may send 600 requests a minute; try again in 2 s",
    ),
    (431, "HeadersTooLarge"): (
        "the request line and the headers have too many bytes, or there are too many headers",
        "the request line and the headers may have 65,536 bytes",
    ),
    (500, "InternalServerError"): (
        "an unexpected error, which is in the log",
        "an unexpected error; it is in the log under this request id",
    ),
    (500, "StoredFileDamaged"): (
        "the stored photo or crop is not what was written",
        "the stored photo is damaged: its content is not what was written. An operator can restore it from a backup",
    ),
    (503, "Throttling"): (
        "the service is busy or loading, its disk is full, or its database cannot be reached; nothing was stored, "
        "unless `detail` says that a part was, or that this is not known",
        "the database is busy or cannot be reached; nothing of this request was stored",
    ),
    (503, "ModelUnavailable"): ("a stored model is missing or altered", "the model m7 was altered: embedder.npy"),
}  # fmt: skip


class Problem(BaseModel):
    """The body of every error (RFC 9457). Some problems have further members for programs, such as `errors` with the
    location of each fault, `version`, `face_id` and `refused`."""

    model_config = ConfigDict(extra="allow")
    type: str = Field(description="urn:likeness:problem:<code>", pattern=r"^urn:likeness:problem:[A-Za-z]+$")
    title: str = Field(description="a short title, for people")
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="what is wrong in this request and what to do, for people")
    code: str = Field(description="what is wrong, for programs; it never changes between versions")
    retryable: bool = Field(description="the same request may succeed later: see Retry-After")
    request_id: str = Field(description="the same as in X-Request-Id and in the server's log")


def declare_problems(*refusals: Refusal) -> dict[str, Any]:
    """Return the entry of a route's `openapi_extra` for problems that are not derived. Raises KeyError if unknown."""
    return {"x-problems": [refusal for refusal in refusals if KNOWN_PROBLEMS[refusal]]}


def build_example(refusal: Refusal) -> dict[str, Any]:
    """Return an example of a problem, as the service would answer it."""
    status, code = refusal
    kinds = {kind.status: kind for kind in AppError.__subclasses__() if kind.status != AppError.status}
    error = AppError(KNOWN_PROBLEMS[refusal][1], code=code)
    kind = kinds.get(status, AppError)
    error.title, error.retryable = kind.title, kind.retryable
    error.status = status
    return {"summary": KNOWN_PROBLEMS[refusal][0], "value": describe_problem(error, REQUEST_ID)}
