"""Define the names, notes and metadata that paths, bodies, forms and manifests may hold."""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from app.db import examples

Role = Literal["gallery", "distractor"]

MAX_METADATA_BYTES = 65_536  # bytes of JSON
MAX_METADATA_KEYS = 1_000
NUL_PATTERN = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
PRINTABLE = r"^[^\x00-\x1f\x7f]*$"


def _check_not_dots(name: str) -> str:
    if name in (".", ".."):
        raise ValueError("may not be '.' or '..', which a URL would lose")
    return name


def _check_text(value: str) -> str:
    value.encode()  # raises a ValueError for half of a surrogate pair
    return value


def _check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    encoded = json.dumps(metadata, allow_nan=False, ensure_ascii=False)
    if len(encoded.encode()) > MAX_METADATA_BYTES:
        raise ValueError(f"has {len(encoded.encode()):,} bytes as JSON; at most {MAX_METADATA_BYTES:,} are allowed")
    if NUL_PATTERN.search(encoded):
        raise ValueError("may not contain the zero character, which PostgreSQL cannot store")
    return metadata


_SUBJECT = StringConstraints(pattern=r"^[^/\\\x00-\x1f\x7f]*$", min_length=1, max_length=255)

SubjectId = Annotated[
    str,
    _SUBJECT,
    AfterValidator(_check_not_dots),
    AfterValidator(_check_text),
    Field(description="the id of a subject, chosen by the client", examples=["ada"]),
]
ExternalId = Annotated[str, StringConstraints(pattern=PRINTABLE, max_length=255), AfterValidator(_check_text)]
ExternalImageId = Annotated[
    str,
    StringConstraints(pattern=PRINTABLE, max_length=1024),
    AfterValidator(_check_text),
    Field(description="the client's name for the photo", examples=["badge-0042.jpg"]),
]
Source = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$"),
    Field(description="what the photo comes from: a camera, a scanner, `masked`", examples=["gate-2"]),
]
Metadata = Annotated[dict[str, Any], Field(max_length=MAX_METADATA_KEYS), AfterValidator(_check_metadata)]

NO_NUL = r"^[^\x00]*$"  # PostgreSQL cannot store a zero byte
Word = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=NO_NUL)]
Note = Annotated[str, StringConstraints(max_length=4096, pattern=NO_NUL)]
TaskName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,63}$"),
    Field(description="a criterion of likeness", examples=["identity"]),
]
CollectionName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,255}$"),
    Field(description="the id of a collection, chosen by the client", examples=[examples.COLLECTION]),
]
FaceName = Annotated[Word, Field(description="a face's id", examples=[examples.FACE])]
ModelName = Annotated[Word, Field(max_length=64, description="a model's id", examples=[examples.MODEL])]
