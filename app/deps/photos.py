"""A photo as it is sent: a file of a form, or base64 in JSON. The door has counted its bytes."""

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from anyio.to_thread import run_sync
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect

from app.errors import Invalid

FILE = "file"
KINDS = "JPEG, PNG, WebP or BMP"
BINARY = {"type": "string", "contentMediaType": "application/octet-stream", "description": KINDS}
BASE64 = {"type": "string", "contentEncoding": "base64", "description": f"{KINDS}, as base64"}
SHORTEST = "Qk06AAAAAAAAADYAAAAoAAAAAQAAAAEAAAABABgAAAAAAAQAAADEDgAAxA4AAAAAAAAAAAAAAAAAAA=="  # a black pixel


def _decoded(sent: object) -> object:
    """Raises Invalid."""
    if not isinstance(sent, str):
        return sent
    try:
        return base64.b64decode("".join(sent.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid(
            f"the image is not base64: {error}; send the file's bytes so encoded, without `data:` before them",
            code="InvalidImageFormat",
        ) from error


Photo = Annotated[bytes, BeforeValidator(_decoded), WithJsonSchema(BASE64)]


class PhotoIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"image": SHORTEST}]})
    image: Photo


class PhotosIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"images": [SHORTEST, SHORTEST]}]})
    images: list[Photo] = Field(min_length=1, max_length=2, description="one photo, or two")


Sent = TypeVar("Sent", bound=BaseModel)


def sent(shape: type[Sent]) -> Callable[[Request], Awaitable[Sent]]:
    """A dependency: what a request sends of this shape, whose first field is `image` or `images`.

    Of a form, that field is the part named `file`, given once or more often, and fields left empty are left out.
    """

    async def read(request: Request) -> Sent:
        try:
            if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
                return await run_sync(_of_json, shape, await request.body())
            async with request.form() as form:
                files = [await part.read() for part in form.getlist(FILE) if isinstance(part, UploadFile)]
                fields = {name: form[name] for name in shape.model_fields if form.get(name)}
            return _of_form(shape, files, fields)
        except ClientDisconnect as error:
            raise Invalid("the body ended before it was whole", code="InvalidRequest") from error

    return read


def _of_json(shape: type[Sent], body: bytes) -> Sent:
    try:
        return shape.model_validate_json(body)
    except ValidationError as error:
        raise _told(error) from error


def _of_form(shape: type[Sent], files: list[bytes], fields: dict[str, Any]) -> Sent:
    photo = next(iter(shape.model_fields))
    given = {photo: files if photo == "images" else files[-1]} if files else {}
    try:
        return shape.model_validate({name: value for name, value in fields.items() if name != photo} | given)
    except ValidationError as error:
        raise _told(error, {photo: FILE}) from error


def _told(error: ValidationError, renamed: dict[str, str] | None = None) -> RequestValidationError:
    """As FastAPI tells of a body that it read itself."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    names = renamed or {}
    return RequestValidationError([e | {"loc": ("body", *(names.get(str(p), p) for p in e["loc"]))} for e in errors])


def bodies(shape: type[BaseModel], **form: Any) -> dict[str, Any]:
    """For a route's `openapi_extra`: both ways of sending this shape, and an example of the form."""
    json = shape.model_json_schema()
    photo = next(iter(shape.model_fields))
    several = {"type": "array", "items": BINARY, "minItems": 1, "maxItems": 2}
    fields = {name: field for name, field in json["properties"].items() if name != photo}
    parts = {
        "type": "object",
        "properties": {FILE: several if photo == "images" else BINARY} | fields,
        "required": [FILE],
    }
    content = {"multipart/form-data": {"schema": parts, "example": form}, "application/json": {"schema": json}}
    return {"requestBody": {"required": True, "content": content}}
