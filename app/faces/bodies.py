"""What the document says of photos and archives, which no schema of ours describes."""

from typing import Any

from app.deps import photos
from app.deps.problems import refuses
from app.faces.schemas import PATCH, DirectoryIn, EnrolIn, EnrolledOut

ARCHIVE_FORM = {
    "type": "object",
    "properties": {"file": photos.BINARY | {"description": "a tar, tar.gz or zip"}},
    "required": ["file"],
}
ARCHIVES: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "a tar, tar.gz or zip, told by its bytes; or a folder of the server that its settings allow",
        "content": {
            "application/x-tar": {"schema": {}},
            "application/zip": {"schema": {}},
            "application/octet-stream": {"schema": {}},
            "multipart/form-data": {"schema": ARCHIVE_FORM, "example": {"file": "staff.zip"}},
            "application/json": {"schema": DirectoryIn.model_json_schema()},
        },
    }
}
PHOTO = photos.bodies(EnrolIn, **PATCH, file="badge-0042.jpg")
ENROLLED: dict[int | str, dict[str, Any]] = {
    200: {"model": EnrolledOut, "description": "it was there, or no face of it could be enrolled"}
}
ENROLS = refuses((409, "DuplicateWithOtherSubject"))
CROP: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {"schema": {}}}}}
PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"content": {f"image/{kind}": {"schema": {}} for kind in ("jpeg", "png", "webp", "bmp")}}
}
