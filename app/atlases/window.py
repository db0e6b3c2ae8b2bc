"""The window of an atlas that a request names."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from app.atlases.schemas import Window
from app.db.tables import Atlas, FaceCoordinates
from app.errors import Invalid


@dataclass(frozen=True)
class WindowEdges:
    """The edges of a window. None: where the map ends"""

    x_min: float | None = None
    x_max: float | None = None
    y_min: float | None = None
    y_max: float | None = None


def find_bounds(session: Session, atlas: Atlas) -> Window | None:
    """Find the smallest window that holds all faces of an atlas; None if it has no face."""
    x, y = FaceCoordinates.x, FaceCoordinates.y
    extremes = select(func.min(x), func.max(x), func.min(y), func.max(y)).where(FaceCoordinates.atlas_pk == atlas.pk)
    x_min, x_max, y_min, y_max = session.execute(extremes).one()
    return None if x_min is None else Window(x_min=x_min, x_max=x_max, y_min=y_min, y_max=y_max)


def resolve_window(session: Session, atlas: Atlas, edges: WindowEdges) -> Window:
    """Complete the edges by the bounds of the atlas. Raises Invalid if a lower edge lies above the upper one."""
    bounds: Window | None = None
    if None in (edges.x_min, edges.x_max, edges.y_min, edges.y_max):
        bounds = find_bounds(session, atlas)
    bounds = bounds or Window(x_min=0.0, x_max=0.0, y_min=0.0, y_max=0.0)
    given = {name: value for name, value in vars(edges).items() if value is not None}
    window = bounds.model_copy(update=given)
    for low, high in (("x_min", "x_max"), ("y_min", "y_max")):
        if getattr(window, low) > getattr(window, high):
            raise Invalid(f"{low} is {getattr(window, low):g}, which is more than {high}, {getattr(window, high):g}")
    return window


def select_faces_in(atlas: Atlas, window: Window) -> Sequence[ColumnElement[bool]]:
    """Return the conditions on coordinates that select the faces in a window, its edges included."""
    return (
        FaceCoordinates.atlas_pk == atlas.pk,
        FaceCoordinates.x.between(window.x_min, window.x_max),
        FaceCoordinates.y.between(window.y_min, window.y_max),
    )
