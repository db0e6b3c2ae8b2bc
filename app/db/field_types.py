"""Define the names, notes and metadata that paths, bodies, forms and manifests may hold."""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from app.db import examples
from app.db.subject_ids import check_visible, compose

Role = Literal["gallery", "distractor"]
LabelPolicy = Literal["list", "refuse"]
LabelWeights = Literal["equal", "agreement"]
Trigger = Literal["on_demand", "schedule", "labels"]
Publication = Literal["never", "if_better"]
ScheduleHours = Annotated[float, Field(ge=1, le=8760, strict=True)]
TimeOfDay = Annotated[str, StringConstraints(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]

MAX_INTEGER = 2**31 - 1  # of a column that is no BIGINT
MAX_ROW_ID = 2**63 - 1
MAX_METADATA_BYTES = 65_536  # bytes of JSON
MAX_METADATA_KEYS = 1_000
NUL_PATTERN = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
MAX_SUBJECT_CHARACTERS = 255
MAX_COLLECTION_CHARACTERS = 200
"""Names of files and locks hold the id of a collection and more, and have 255 and 300 characters at most."""
PRINTABLE = r"^[^\x00-\x1f\x7f]*$"


def _check_not_dots(name: str) -> str:
    if name in (".", ".."):
        raise ValueError("may not be '.' or '..', which a URL would lose")
    return name


def _check_text(value: str) -> str:
    value.encode()  # raises a ValueError for half of a surrogate pair
    return value


def _compose(subject_id: str) -> str:
    composed = compose(subject_id)
    if len(composed) > MAX_SUBJECT_CHARACTERS:
        raise ValueError(f"has {len(composed)} characters in Unicode NFC; at most {MAX_SUBJECT_CHARACTERS} are allowed")
    return composed


def _trim_blanks(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a face or subject. Raises ValueError if it may not be stored."""
    if len(metadata) > MAX_METADATA_KEYS:
        raise ValueError(f"has {len(metadata):,} keys; at most {MAX_METADATA_KEYS:,} are allowed")
    encoded = json.dumps(metadata, allow_nan=False, ensure_ascii=False)
    if len(encoded.encode()) > MAX_METADATA_BYTES:
        raise ValueError(f"has {len(encoded.encode()):,} bytes as JSON; at most {MAX_METADATA_BYTES:,} are allowed")
    if NUL_PATTERN.search(encoded):
        raise ValueError("may not contain the zero character, which PostgreSQL cannot store")
    return metadata


_SUBJECT = StringConstraints(pattern=r"^[^/\\\x00-\x1f\x7f]*$", min_length=1, max_length=MAX_SUBJECT_CHARACTERS)

SubjectId = Annotated[
    str,
    _SUBJECT,
    AfterValidator(_check_not_dots),
    AfterValidator(_check_text),
    Field(description="the id of a subject, chosen by the client", examples=["ada"]),
]
NewSubjectId = Annotated[
    SubjectId,
    AfterValidator(_compose),
    AfterValidator(check_visible),
    Field(
        description="the id of a subject, chosen by the client, without blanks at its ends and invisible characters; "
        "it is stored composed (Unicode NFC)",
        examples=["ada"],
    ),
]
"""The id of a subject that is created if it is new. Those of older versions may be decomposed, or have such
characters: see app/db/subject_ids.py."""
ArchivedSubjectId = Annotated[NewSubjectId, BeforeValidator(_trim_blanks)]
"""The name of a folder, or a column of a manifest: blanks at its ends are dropped."""
ExternalId = Annotated[str, StringConstraints(pattern=PRINTABLE, max_length=255), AfterValidator(_check_text)]
ExternalImageId = Annotated[
    str,
    StringConstraints(pattern=PRINTABLE, max_length=1024),
    AfterValidator(_check_text),
    Field(description="the client's name for the photo", examples=["badge-0042.jpg"]),
]
GUESS = "guess"
"""In place of a query's source: it is guessed from the embedding."""


def _check_not_guess(source: str) -> str:
    if source == GUESS:
        raise ValueError(f"{GUESS!r} is reserved for searches whose source is to be guessed; choose another name")
    return source


QuerySource = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$"),
    Field(
        description="what the photo comes from: a camera, a scanner, `masked`; `guess`: a source that is clearly "
        "recognised, or none",
        examples=["gate-2"],
    ),
]
Source = Annotated[
    QuerySource,
    AfterValidator(_check_not_guess),
    Field(description="what the photo comes from: a camera, a scanner, `masked`", examples=["gate-2"]),
]
Metadata = Annotated[dict[str, Any], Field(max_length=MAX_METADATA_KEYS), AfterValidator(check_metadata)]

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
NewCollectionName = Annotated[
    CollectionName,
    StringConstraints(max_length=MAX_COLLECTION_CHARACTERS),
    AfterValidator(_check_not_dots),
    Field(
        description=f"the id of a collection, chosen by the client; a new one has {MAX_COLLECTION_CHARACTERS} "
        "characters at most, and is not `.` or `..`",
        examples=[examples.COLLECTION],
    ),
]
"""The id of a collection that is created if it is new. Those of older versions may be longer, or dots."""
FaceName = Annotated[Word, Field(description="a face's id", examples=[examples.FACE])]
ModelName = Annotated[Word, Field(max_length=64, description="a model's id", examples=[examples.MODEL])]
