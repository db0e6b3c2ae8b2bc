"""Define the names, notes and metadata that paths, bodies, forms and manifests may hold."""

import json
import re
import unicodedata
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from app.db import examples

Role = Literal["gallery", "distractor"]

MAX_METADATA_BYTES = 65_536  # bytes of JSON
MAX_METADATA_KEYS = 1_000
NUL_PATTERN = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
PRINTABLE = r"^[^\x00-\x1f\x7f]*$"
INVISIBLE_CATEGORIES = ("Cc", "Cf", "Zl", "Zp", "Zs")
INVISIBLE_SYMBOLS = "\u034f\u115f\u1160\u2800\u3164\uffa0"
"""Characters of other categories that are drawn as nothing: a joiner, four fillers of Hangul, a blank of Braille."""
JOINERS, VIRAMA = "\u200c\u200d", 9
"""Persian and Indic spellings have joiners. VIRAMA: the combining class of the sign that suppresses a vowel"""


def _check_not_dots(name: str) -> str:
    if name in (".", ".."):
        raise ValueError("may not be '.' or '..', which a URL would lose")
    return name


def _check_text(value: str) -> str:
    value.encode()  # raises a ValueError for half of a surrogate pair
    return value


def _check_visible(name: str) -> str:
    """Refuse blanks and characters by which two names differ and look the same."""
    if name != name.strip(" "):
        raise ValueError("may not begin or end with a blank (U+0020 SPACE)")
    for before, character in pairwise(f" {name}"):
        is_invisible = unicodedata.category(character) in INVISIBLE_CATEGORIES or character in INVISIBLE_SYMBOLS
        if is_invisible and character != " " and not (character in JOINERS and _is_joined(before)):
            called = unicodedata.name(character, "a control character")
            raise ValueError(f"may not contain the invisible character U+{ord(character):04X} {called}")
    return name


def _is_joined(before: str) -> bool:
    """Whether a joiner after this character is part of the spelling: after a virama, or an Arabic letter (RFC 5892)."""
    return unicodedata.combining(before) == VIRAMA or unicodedata.bidirectional(before) == "AL"


def _trim_blanks(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


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
NewSubjectId = Annotated[
    SubjectId,
    AfterValidator(_check_visible),
    Field(
        description="the id of a subject, chosen by the client, without blanks at its ends and invisible characters",
        examples=["ada"],
    ),
]
"""The id of a subject that is created if it is new. Those of older versions may have such characters."""
ArchivedSubjectId = Annotated[NewSubjectId, BeforeValidator(_trim_blanks)]
"""The name of a folder, or a column of a manifest: blanks at its ends are dropped."""
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
