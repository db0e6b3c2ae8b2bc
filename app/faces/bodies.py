"""Describe the bodies and answers that are photos, crops and archives for the OpenAPI document."""

from typing import Any

from app.deps import photos
from app.deps.problems import declare_problems
from app.faces.schemas import PATCH, DirectoryIn, EnrolIn, EnrolledOut

ARCHIVE_FORM = {
    "type": "object",
    "properties": {"file": photos.BINARY | {"description": "a tar, tar.gz or zip"}},
    "required": ["file"],
}
IMPORT_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "a tar, tar.gz or zip, recognised by its bytes; or a folder of the server that its settings "
        "allow",
        "content": {
            "application/x-tar": {"schema": {}},
            "application/zip": {"schema": {}},
            "application/octet-stream": {"schema": {}},
            "multipart/form-data": {"schema": ARCHIVE_FORM, "example": {"file": "staff.zip"}},
            "application/json": {"schema": DirectoryIn.model_json_schema()},
        },
    }
}
ENROL_BODY = photos.describe_bodies(EnrolIn, **PATCH, file="badge-0042.jpg")
ENROLLED_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {"model": EnrolledOut, "description": "the photo was enrolled already, or has no face to enrol"}
}
NAMING_PROBLEMS = declare_problems((409, "EnrolmentNotAllowed"))
ENROL_PROBLEMS = declare_problems(
    (409, "DuplicateWithOtherSubject"),
    (409, "ResourceInUse"),
    (409, "EnrolmentNotAllowed"),
    (409, "ExternalDescriptor"),
)
IMPORT_PROBLEMS = declare_problems((409, "ExternalDescriptor"))
CROP_RESPONSE: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {"schema": {}}}}}
PHOTO_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {"content": {f"image/{kind}": {"schema": {}} for kind in ("jpeg", "png", "webp", "bmp")}}
}
