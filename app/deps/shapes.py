"""What the answers of several slices show."""

from typing_extensions import TypedDict


class BoundingBox(TypedDict):
    """In pixels of the upright photo, from its top-left corner."""

    x: float
    y: float
    width: float
    height: float


class SubjectRef(TypedDict):
    """Whose face it is."""

    id: str
    external_id: str | None
