"""What a search answers. Plain dictionaries: an answer may hold thousands of matches."""

from typing import NotRequired

from pydantic import ConfigDict
from typing_extensions import TypedDict

from app.deps.shapes import BoundingBox, SubjectRef
from app.search.samples import EXAMPLE, MIXED, VERDICT


class Score(TypedDict):
    """distance: as the model compares, smaller is more alike; similarity: 0 to 100, monotone in the distance."""

    distance: float
    similarity: float
    probability: float | None
    fmr_estimate: float | None
    passes: bool | None


class Grid(TypedDict):
    """rows x columns of squares, `size` pixels a side, from the top-left corner of that kind of crop: grey is 100 wide
    and 170 high, colour 112 x 112."""

    crop: str
    rows: int
    columns: int
    size: int


class ExplanationPart(TypedDict):
    """What one descriptor made of a distance: `contribution` is the sum of its `cells`, row after row of the grid.
    Above 0 it draws the faces apart, below 0 together. null: the descriptor tells of the whole face at once."""

    task: str
    descriptor: str
    contribution: float
    grid: Grid | None
    cells: list[list[float]] | None


class Explanation(TypedDict):
    """distance = the contributions of all parts + rest, in double precision. rest: what no cell made (0 for one linear
    map; with local maps, what came of the faces' belonging to different ones)."""

    distance: float
    parts: list[ExplanationPart]
    rest: float


class Match(Score):
    """distances: of a mix, each task's own. unexplained: why an explanation that was asked for is null."""

    face_id: str
    subject: SubjectRef | None
    role: str
    distances: NotRequired[dict[str, float]]
    crop: NotRequired[str | None]
    explanation: NotRequired[Explanation | None]
    unexplained: NotRequired[str]


class Matches(TypedDict):
    """One face of the photo. unknown: a threshold or fmr was given, and nobody passes. null: none was given."""

    bounding_box: BoundingBox | None
    unknown: bool | None
    crop: NotRequired[str | None]
    matches: list[Match]


class Limit(TypedDict):
    """Where the line lies, and how sure that is: of the impostor pairs of this gallery, `fmr` are as near, between
    low and high (95 %). enough: whether the evidence carries it."""

    distance: float
    similarity: float
    fmr: float | None
    low: float | None
    high: float | None
    enough: bool | None


class Weighed(TypedDict):
    """A task's part in a mix: share x its distance / scale. scale: how far this gallery's strangers spread by it."""

    task: str
    share: float
    scale: float
    model: str
    index_generation: str
    m: int


class Answer(TypedDict):
    """m: cells probed; fraction: distances computed over faces held; calibrated: whether similarity is a probability
    (else it is an order only); threshold: what `passes` goes by.

    Of a mix of tasks: `tasks` says what each of them is in it, model and index_generation name those of all, m is the
    largest, fraction the sum; complete: no face of the cells probed that is missing here is nearer."""

    faces: list[Matches]
    model: str
    index_generation: str
    task: str
    m: int
    fraction: float
    calibrated: bool
    threshold: Limit | None
    unknown: bool | None
    tasks: NotRequired[list[Weighed]]
    complete: NotRequired[bool]


class Verdict(Score):
    """passes: taken for one person at the threshold. face_id: the nearest face of the subject, or the one named."""

    bounding_boxes: list[BoundingBox]
    face_id: str | None
    model: str
    index_generation: str
    task: str
    calibrated: bool
    threshold: Limit | None


setattr(Answer, "__pydantic_config__", ConfigDict(json_schema_extra={"examples": [EXAMPLE, MIXED]}))  # noqa: B010
setattr(Verdict, "__pydantic_config__", ConfigDict(json_schema_extra={"examples": [VERDICT]}))  # noqa: B010
