"""Which problems an operation may answer with: a status and a code. Routes name those that are special to them with
`refuses`; `app.document` derives the others from what the operation takes. What each means is said here, once."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from app.db.examples import FACE
from app.errors import AppError, problem

Refusal = tuple[int, str]
MEDIA_TYPE = "application/problem+json"
REQUEST_ID = "4f1d2a0b9c8e7f65"

KNOWN: dict[Refusal, tuple[str, str]] = {
    (400, "InvalidRequest"): ("the body cannot be parsed", "There was an error parsing the body"),
    (401, "AccessDenied"): ("no key, or one that is not known or was revoked", "this key is not known, or was revoked"),
    (403, "AccessDenied"): (
        "the key lacks the role, or is bound to other collections",
        "this needs the role operator; the key has reader",
    ),
    (404, "ResourceNotFound"): ("what the path, the query or the body names is not there", "no collection 'staff'"),
    (404, "UnknownTask"): ("no model serves the task there", "collection 'staff' has no model for the task 'age'"),
    (404, "UnknownModel"): ("no pointer names the model there", "'m7' is not deployed in 'staff'; there: champion m6"),
    (409, "ResourceInUse"): ("it contradicts what is there", "model m7 is archived"),
    (409, "RequestInProgress"): (
        "an earlier request with this Idempotency-Key is not answered yet",
        "a request with this Idempotency-Key is being done; try again",
    ),
    (409, "DuplicateWithOtherSubject"): (
        "the photo is enrolled under another subject or role; `face_id` names that face",
        "this photo is enrolled under another subject or role; change or delete that face first",
    ),
    (409, "NotCalibrated"): (
        "a false-match rate was given, or several tasks, and too few pairs were measured to know or weigh any",
        "no false-match rate is known here yet: more faces, and subjects with two or more, are needed",
    ),
    (409, "TaskDisabled"): ("the task is off", "the task age is off; an administrator can switch it on"),
    (409, "NotInstalled"): (
        "a file or library that the model needs is not on the server",
        "no ONNX manifest at recogniser.json; docs/use/recognisers.md says how one is written",
    ),
    (409, "CropMissing"): (
        "stored faces lack the kind of crop that the recogniser describes",
        "12 of 2,400 faces of 'staff' have no stored crop of the kind 'colour', which sface describes",
    ),
    (412, "PreconditionFailed"): (
        "If-Match names another version; `version` is the one there",
        "the deployment is at version 4, not 3: look at it again",
    ),
    (413, "RequestTooLarge"): (
        "the body has too many bytes",
        "the body may have 33,554,432 bytes; send less, or raise the limit in the settings",
    ),
    (413, "ArchiveTooLarge"): (
        "the archive is over a limit of entries, bytes unpacked, or ratio",
        "the archive has more than 2,000,000 entries",
    ),
    (422, "InvalidParameter"): (
        "a value cannot be taken; `errors` lists where",
        "body.limit: Input should be less than or equal to 200",
    ),
    (422, "InvalidPaginationToken"): ("no such `next_token` was given", "next_token is not one that this service gave"),
    (422, "IdempotencyKeyReused"): (
        "the Idempotency-Key came with another request before",
        "this Idempotency-Key was sent with another request",
    ),
    (422, "InvalidRequest"): (
        "the form is broken, or lacks its part `file`; or the body ended before it was whole",
        "the form has no part named `file`",
    ),
    (422, "InvalidImageFormat"): (
        "the file is no picture that is taken, or it is broken; or what should be base64 is not",
        "the file is not a JPEG, PNG, WebP or BMP picture",
    ),
    (422, "ImageTooLarge"): (
        "the picture is over a limit of bytes or pixels",
        "the photo is 20000 x 4000 pixels; at most 50,000,000 pixels in total are allowed",
    ),
    (422, "NoFace"): ("no face was found in the photo", "no face was found in the photo"),
    (422, "InvalidArchive"): (
        "the archive is none, is broken, or holds paths or links that lead outside",
        "the archive is refused: 'a/../../b.jpg' leads out of the archive by '..'",
    ),
    (422, "UnknownComponent"): (
        "no method or descriptor has this name; the detail lists those that there are",
        "no method is named 'magic'; there are: clml, cpmtml, ldml, wpca",
    ),
    (422, "UnknownTask"): ("no such task is known, or the model lacks it", "model lbp-l2 serves identity, not age"),
    (422, "TaskDisabled"): ("the task is off", "the task 'age' is off; an administrator may switch it on"),
    (422, "ReasonRequired"): ("an override without a reason", "an override needs a reason, which is kept on record"),
    (422, "ResourceNotFound"): ("no label can be kept: a face is not there", f"no face {FACE}"),
    (422, "SameFace"): ("no label can be kept: a face with itself", f"face {FACE} cannot be compared with itself"),
    (500, "InternalServerError"): (
        "nobody expected it; the log has it",
        "an unexpected error; the log has it under this request id",
    ),
    (503, "Throttling"): (
        "the service is busy, loading, full or cut off from its database; nothing of the request was kept",
        "the database is busy or away; nothing of this request was kept",
    ),
    (503, "ModelUnavailable"): ("a stored model is missing or altered", "the model m7 was altered: embedder.npy"),
}  # fmt: skip


class Problem(BaseModel):
    """The body of every error (RFC 9457). Some have further members, which say more for programs: `errors` with the
    place of each fault, `version`, `face_id`, `refused`, ..."""

    model_config = ConfigDict(extra="allow")
    type: str = Field(description="urn:likeness:problem:<code>", pattern=r"^urn:likeness:problem:[A-Za-z]+$")
    title: str = Field(description="of the status, for people")
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="what is wrong here and what to do, for people")
    code: str = Field(description="what is wrong, for programs; it stays the same from version to version")
    retryable: bool = Field(description="the same request may succeed later: see Retry-After")
    request_id: str = Field(description="as in X-Request-Id and in the server's log")


def refuses(*refusals: Refusal) -> dict[str, Any]:
    """For a route's `openapi_extra`: what it may answer beyond what is derived. Raises KeyError for an unknown one."""
    return {"x-problems": [refusal for refusal in refusals if KNOWN[refusal]]}


def example(refusal: Refusal) -> dict[str, Any]:
    """As the service would answer it."""
    status, code = refusal
    kinds = {kind.status: kind for kind in AppError.__subclasses__()}
    error = kinds.get(status, AppError)(KNOWN[refusal][1], code=code)
    error.status = status
    return {"summary": KNOWN[refusal][0], "value": problem(error, REQUEST_ID)}
