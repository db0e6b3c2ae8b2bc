"""Parts of answers that several slices use."""

from typing_extensions import TypedDict


class BoundingBox(TypedDict):
    """A rectangle in pixels of the upright photo. x and y are its top-left corner."""

    x: float
    y: float
    width: float
    height: float


class SubjectRef(TypedDict):
    """The person whose face it is."""

    id: str
    external_id: str | None
