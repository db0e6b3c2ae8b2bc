"""Read photos from a request: files of a form, or base64 in JSON. AuthMiddleware has limited their bytes."""

import base64
import binascii
import string
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from starlette.datastructures import FormData, UploadFile
from starlette.requests import ClientDisconnect

from app.deps.held_bytes import PHOTO_BYTES, HeldShare
from app.deps.server.json_limits import check_json
from app.deps.uploads.photo_form import check_charset, is_form, open_form, yield_body
from app.deps.uploads.single_file_form import find_single_file
from app.errors import Busy, Invalid

FILE_PART = "file"
JSON_PARSERS = CapacityLimiter(2)
"""Parsing JSON with a photo takes several times its bytes, so that few bodies are parsed at once. So for forms."""
MAX_SHOWN_NAME = 64
MAX_WHOLE_FORM_BYTES = 2**20
"""A form of so many bytes stays in memory while it arrives."""
IMAGE_FORMATS = "JPEG, PNG, WebP or BMP"
BINARY = {"type": "string", "contentMediaType": "application/octet-stream", "description": IMAGE_FORMATS}
BASE64 = {"type": "string", "contentEncoding": "base64", "description": f"{IMAGE_FORMATS}, as base64"}
SMALLEST_IMAGE = "Qk06AAAAAAAAADYAAAAoAAAAAQAAAAEAAAABABgAAAAAAAQAAADEDgAAxA4AAAAAAAAAAAAAAAAAAA=="  # a black pixel


def _decode_base64(sent: object) -> object:
    """Raises Invalid."""
    if not isinstance(sent, str):
        return sent
    compact = "".join(sent.split()) if any(blank in sent for blank in string.whitespace) else sent
    try:
        return base64.b64decode(compact, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid(
            f"the image is not base64: {error}; send the bytes of the file as base64, without `data:` before them",
            code="InvalidImageFormat",
        ) from error


Photo = Annotated[bytes, BeforeValidator(_decode_base64), WithJsonSchema(BASE64)]


class PhotoIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"image": SMALLEST_IMAGE}]})
    image: Photo


class PhotosIn(BaseModel):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"images": [SMALLEST_IMAGE, SMALLEST_IMAGE]}]}
    )
    images: list[Photo] = Field(min_length=1, max_length=2, description="one photo, or two")


PhotoBody = TypeVar("PhotoBody", bound=BaseModel)


def read_photos(shape: type[PhotoBody]) -> Callable[[Request], AsyncIterator[PhotoBody]]:
    """Return a dependency that reads a body of this shape, whose first field is `image` or `images`.

    In a form, this field is the part `file`, which may be repeated. Empty fields of a form are ignored.
    """

    async def read(request: Request) -> AsyncIterator[PhotoBody]:
        is_json = request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
        with PHOTO_BYTES.open_share() as share:
            share.begin(request.scope)
            try:
                body = await (_read_json if is_json else _read_form)(request, shape, share)
            except ClientDisconnect as error:
                raise Invalid("the body ended before it was complete", code="InvalidRequest") from error
            yield body

    return read


async def _read_json(request: Request, shape: type[PhotoBody], share: HeldShare) -> PhotoBody:
    return await run_sync(_parse_json, shape, await _read_whole(request, share), limiter=JSON_PARSERS)


async def _read_whole(request: Request, share: HeldShare) -> bytearray:
    """Read a body into memory. If too many bytes are held already, the rest of it is read and dropped. Raises Busy."""
    data, refusal = bytearray(), None
    async for chunk in request.stream():
        try:
            if refusal is None:
                share.add(len(chunk))
                data += chunk
        except Busy as busy:
            refusal = busy
            data.clear()
            share.end()
    if refusal is not None:
        raise refusal
    share.complete()
    return data


async def _read_form(request: Request, shape: type[PhotoBody], share: HeldShare) -> PhotoBody:
    """Read a form. Its files are on disk until here, if they are large."""
    content_type, length = request.headers.get("content-type", ""), request.headers.get("content-length", "")
    if not is_form(content_type):
        return _parse_form(shape, [], {})
    check_charset(content_type)
    blocks: AsyncIterator[bytes] = request.stream()
    if length.isdigit() and int(length) <= MAX_WHOLE_FORM_BYTES:
        body = bytes(await _read_whole(request, share))
        photo = find_single_file(content_type, body)
        if photo is not None:
            return _parse_form(shape, [photo], {})
        blocks = yield_body(body)
    async with open_form(request.headers, blocks, len(shape.model_fields), share.add) as form:
        _check_repeated_fields(form, shape)
        share.complete()
        parts = [part for part in form.getlist(FILE_PART) if isinstance(part, UploadFile)]
        share.add(sum(part.size or 0 for part in parts))
        files = [await part.read() for part in parts]
        fields = {name: form[name] for name in form if name != FILE_PART and form[name]}
    if not fields:  # nothing that takes time to validate
        return _parse_form(shape, files, {})
    return await run_sync(_parse_form, shape, files, fields, limiter=JSON_PARSERS)


def _check_repeated_fields(form: FormData, shape: type[PhotoBody]) -> None:
    """Check that a form has each field once, but for the files of a request with several photos. Raises Invalid.

    A proxy might check one of two values, and this service use the other.
    """
    counts = Counter(name for name, _ in form.multi_items())
    if "images" in shape.model_fields:
        del counts[FILE_PART]
    repeated = next((name for name, count in counts.items() if count > 1), None)
    if repeated is not None:
        raise Invalid(f"the form has the field {repeated[:MAX_SHOWN_NAME]!r} more than once")


def _parse_json(shape: type[PhotoBody], body: bytearray) -> PhotoBody:
    check_json(body)
    try:
        return shape.model_validate_json(body)
    except ValidationError as error:
        raise _describe_error(error) from error


def _parse_form(shape: type[PhotoBody], files: list[bytes], fields: dict[str, Any]) -> PhotoBody:
    photo = next(iter(shape.model_fields))
    given = {photo: files if photo == "images" else files[-1]} if files else {}
    try:
        return shape.model_validate({name: value for name, value in fields.items() if name != photo} | given)
    except ValidationError as error:
        raise _describe_error(error, {photo: FILE_PART}) from error


def _describe_error(error: ValidationError, renamed: dict[str, str] | None = None) -> RequestValidationError:
    """Make the error that FastAPI raises for a body that it reads itself. renamed: field -> part of the form"""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    names = renamed or {}
    return RequestValidationError([e | {"loc": ("body", *(names.get(str(p), p) for p in e["loc"]))} for e in errors])


def describe_bodies(shape: type[BaseModel], **form: Any) -> dict[str, Any]:
    """Return the entries of a route's `openapi_extra` for both ways of sending this shape. form: an example"""
    json = shape.model_json_schema()
    photo = next(iter(shape.model_fields))
    several = {"type": "array", "items": BINARY, "minItems": 1, "maxItems": 2}
    fields = {name: field for name, field in json["properties"].items() if name != photo}
    parts = {
        "type": "object",
        "properties": {FILE_PART: several if photo == "images" else BINARY} | fields,
        "required": [FILE_PART],
        "additionalProperties": False,
    }
    content = {"multipart/form-data": {"schema": parts, "example": form}, "application/json": {"schema": json}}
    return {"requestBody": {"required": True, "content": content}}
