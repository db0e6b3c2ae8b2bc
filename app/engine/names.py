"""What may be a name or a note, said once: for paths, bodies, forms and manifests alike."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, StringConstraints

Role = Literal["gallery", "distractor"]

LONGEST_METADATA = 65_536  # bytes of JSON
PRINTABLE = r"^[^\x00-\x1f\x7f]*$"


def _no_dots(name: str) -> str:
    if name in (".", ".."):
        raise ValueError("may not be '.' or '..', which a URL would lose")
    return name


def _text(value: str) -> str:
    value.encode()  # half a surrogate pair is no text: a ValueError
    return value


def _storable(metadata: dict[str, Any]) -> dict[str, Any]:
    told = json.dumps(metadata, allow_nan=False, ensure_ascii=False).encode()
    if len(told) > LONGEST_METADATA:
        raise ValueError(f"has {len(told):,} bytes as JSON; at most {LONGEST_METADATA:,} are kept")
    return metadata


_SUBJECT = StringConstraints(pattern=r"^[^/\\\x00-\x1f\x7f]*$", min_length=1, max_length=255)

SubjectId = Annotated[str, _SUBJECT, AfterValidator(_no_dots), AfterValidator(_text)]
ExternalId = Annotated[str, StringConstraints(pattern=PRINTABLE, max_length=255), AfterValidator(_text)]
ExternalImageId = Annotated[str, StringConstraints(pattern=PRINTABLE, max_length=1024), AfterValidator(_text)]
Metadata = Annotated[dict[str, Any], AfterValidator(_storable)]
