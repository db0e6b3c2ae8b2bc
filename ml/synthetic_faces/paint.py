"""Paint a face from the front, without light."""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ml.synthetic_faces.people import Person, Shot
from ml.types import Image

EYE_DISTANCE_SHARE = 0.18
"""Distance between the eyes, as a share of the side of the photo."""
CIRCLE_ANGLES = np.linspace(0, 2 * np.pi, 40, endpoint=False)
CIRCLE: NDArray[np.float64] = np.column_stack([np.cos(CIRCLE_ANGLES), np.sin(CIRCLE_ANGLES)])


class Brush:
    """Paints areas, lines and ovals on an RGB sheet, in eye distances, with smooth edges."""

    def __init__(self, sheet: Image) -> None:
        self.sheet, self.size = sheet, len(sheet)

    def _at(self, points: Any) -> NDArray[np.int32]:
        """Convert (n, 2) points to OpenCV's fixed-point coordinates, in sixteenths of a pixel."""
        return np.round((np.asarray(points) * EYE_DISTANCE_SHARE * self.size + (self.size - 1) / 2) * 16).astype(
            np.int32
        )

    def area(self, points: Any, colour: Sequence[float]) -> None:
        """Fill a polygon of (n, 2) points."""
        cv2.fillPoly(self.sheet, [self._at(points)], tuple(map(float, colour)), cv2.LINE_AA, 4)

    def line(self, points: Any, colour: Sequence[float], wide: float) -> None:
        """Draw a line through (n, 2) points."""
        thick = max(1, round(wide * EYE_DISTANCE_SHARE * self.size))
        cv2.polylines(self.sheet, [self._at(points)], False, tuple(map(float, colour)), thick, cv2.LINE_AA, 4)

    def oval(self, u: float, v: float, wide: float, high: float, colour: Sequence[float], slant: float = 0.0) -> None:
        """Fill an ellipse about (u, v), turned by `slant` radians."""
        turn = np.array([[np.cos(slant), np.sin(slant)], [-np.sin(slant), np.cos(slant)]])
        self.area(np.array([u, v]) + CIRCLE * (wide, high) @ turn, colour)


def face(who: Person, how: Shot, size: int) -> Image:
    """Paint a face: (size, size, 3) uint8 RGB."""
    rng = np.random.default_rng([22, who.seed, how.seed])
    behind = rng.uniform(40, 215, (4, 4, 1)) + rng.normal(0, 14, (4, 4, 3))
    smooth = cv2.resize(np.clip(behind, 0, 255).astype(np.uint8), (size, size), interpolation=cv2.INTER_LINEAR)
    brush = Brush(np.asarray(smooth, np.uint8))
    skin, grey = np.array(who.skin), min(max((who.age - 40) / 35, 0.0), 0.9)
    hair = np.array(who.hair) * (1 - grey) + 190 * grey
    _head(brush, who, skin, hair, rng.uniform(20, 235, 3))
    _beard(brush, who, skin)
    _fringe(brush, who, hair)
    _moles(brush, who, skin)
    _ageing(brush, who, skin)
    for side in (-1, 1):
        _eye(brush, who, how, side, skin)
        _brow(brush, who, side, hair * 0.6)
        _nostril(brush, who, side, skin)
    _mouth(brush, who, how, skin)
    return brush.sheet


def mouth_corner(who: Person, how: Shot) -> tuple[float, float]:
    """Return the position of the right corner of the mouth."""
    return 0.41 * who.mouth_width * (1 + 0.18 * how.smile), 0.495 * who.mouth_height - 0.1 * how.smile


def _outline(who: Person) -> NDArray[np.float64]:
    """Return the outline of the face, from the right round the chin to the left and over the brow."""
    u, v = CIRCLE.T
    narrow = np.where(v > 0, 1 - (1 - 0.62 * who.jaw) * v**2 * 0.55, 1.0)
    return np.column_stack([1.08 * who.face_width * u * narrow, -0.2 + v * np.where(v > 0, 1.5 * who.chin, 1.42)])


def _head(brush: Brush, who: Person, skin: Any, hair: Any, cloth: Any) -> None:
    wide, long = 1.08 * who.face_width, who.hair_length
    brush.oval(0, -0.35, wide * 1.17, 1.6, hair)
    if long > 0.8:
        brush.area([(-wide * 1.2, -0.4), (wide * 1.2, -0.4), (wide * 1.25, long), (-wide * 1.25, long)], hair)
    brush.oval(0, 2.95, 2.3, 1.2, cloth)
    brush.area([(-0.55, 0.8), (0.55, 0.8), (0.62, 2.2), (-0.62, 2.2)], skin * 0.78)
    for side in (-1, 1):
        brush.oval(side * wide, -0.2, 0.14, 0.3, skin * 0.85)
    brush.area(_outline(who), skin)


def _beard(brush: Brush, who: Person, skin: Any) -> None:
    if who.beard:
        shade = skin * (1 - who.beard) + np.array(who.hair) * who.beard
        brush.area(np.vstack([_outline(who)[1:20], [(-0.7, 0.25), (-0.25, 0.33), (0.25, 0.33), (0.7, 0.25)]]), shade)
        brush.oval(0, 0.72, 0.3, 0.1, skin * (1 - who.beard / 2))


def _fringe(brush: Brush, who: Person, hair: Any) -> None:
    wide, top, hairline = 1.08 * who.face_width, -1.72, -1.22 * who.hairline
    below = [
        (-1.06, -0.45),
        (-0.88, hairline * 0.85),
        (who.parting / wide, hairline * 1.08),
        (0.88, hairline * 0.85),
        (1.06, -0.45),
    ]
    above = [(1.12, -0.9), (0.6, top), (-0.6, top), (-1.12, -0.9)]
    brush.area(np.array([*below, *above]) * (wide, 1), hair)


def _moles(brush: Brush, who: Person, skin: Any) -> None:
    rng = np.random.default_rng([23, who.seed])
    for u, v in rng.uniform((-0.85, -1.1), (0.85, 1.0), (rng.integers(0, 5), 2)):
        brush.oval(u, v, 0.035, 0.035, skin * 0.45)


def _ageing(brush: Brush, who: Person, skin: Any) -> None:
    """Draw folds and lines that deepen with age."""
    depth = min(max((who.age - 25) / 50, 0.0), 1.0)
    ink = skin * (1 - 0.45 * depth)
    for side in (-1, 1):
        brush.line([(side * 0.24, 0.1), (side * 0.42, 0.3), (side * 0.5, 0.55)], ink, 0.03)
        brush.line([(side * 0.28, -0.33), (side * 0.5, -0.27), (side * 0.7, -0.35)], ink, 0.03)
        for v in (-0.62, -0.5, -0.4)[: 3 * (depth > 0.3)]:
            brush.line([(side * 0.8, -0.51), (side * 0.97, v)], ink, 0.02)
    for v in (-1.1, -1.0, -0.92)[: round(3.4 * depth)]:
        brush.line([(-0.5, v), (0, v - 0.03), (0.5, v)], ink, 0.025)


def _eye(brush: Brush, who: Person, how: Shot, side: int, skin: Any) -> None:
    u, v, slant = 0.5 * side, -0.525, who.eye_slant * side
    wide, high = 0.235 * who.eye_size, 0.1 * who.eye_height * (1 - 0.25 * how.smile)
    brush.oval(u, v, wide * 1.3, high * 1.9, skin * 0.8, slant)
    brush.oval(u, v, wide, high, (236, 232, 228), slant)
    look = u + how.gaze * 0.3 * wide
    brush.oval(look, v, min(high * 1.05, wide * 0.5), high * 0.98, who.iris)
    brush.oval(look, v, high * 0.5, high * 0.5, (16, 14, 14))
    brush.oval(look - 0.03, v - 0.03, 0.018, 0.018, (250, 250, 250))
    drop = slant * wide
    lid = [(-wide, 0.02 - drop), (-wide * 0.5, -high), (wide * 0.4, -high), (wide, 0.02 + drop)]
    brush.line(np.array([u, v]) + lid, skin * 0.25, 0.05)


def _brow(brush: Brush, who: Person, side: int, ink: Any) -> None:
    base, thick = -0.82 * who.brow_height**0.2, 0.055 * who.brow_weight
    inner, outer, peak = 0.2 * side, 0.83 * side, base - who.brow_arch - 0.05
    above = [(inner, base), (0.6 * side, peak - thick), (outer, base + 0.04)]
    brush.area([*above, (0.6 * side, peak + thick), (inner, base + 2 * thick)], ink)


def _nostril(brush: Brush, who: Person, side: int, skin: Any) -> None:
    tip, wide = 0.12 * who.nose_length, 0.15 * who.nose_width * side
    brush.oval(wide * 0.75, tip + 0.03, 0.06 * who.nose_width, 0.032, skin * 0.35)
    brush.line([(wide * 1.5, tip - 0.1), (wide * 1.6, tip), (wide * 1.2, tip + 0.05)], skin * 0.62, 0.03)


def _mouth(brush: Brush, who: Person, how: Shot, skin: Any) -> None:
    wide, corner = mouth_corner(who, how)
    v, lip, lift = 0.495 * who.mouth_height, 0.075 * who.lip, 0.02 * how.smile
    gap = 0.13 * how.mouth_open + 0.08 * max(0.0, how.smile - 0.4)
    red, low = skin * (0.8, 0.52, 0.52), v + gap + lip * 1.3
    bow = [(-wide * 0.35, v - lip - lift), (0, v - lip * 0.7), (wide * 0.35, v - lip - lift)]
    brush.area(
        [(-wide, corner), *bow, (wide, corner), (wide * 0.5, low), (0, low + 0.4 * lip), (-wide * 0.5, low)], red
    )
    inner = [(-wide * 0.85, corner + 0.01), (0, v), (wide * 0.85, corner + 0.01), (0, v + gap + 0.01)]
    brush.area(inner, (228, 222, 212) if how.smile > 0.45 else (60, 26, 26))
    brush.line([(-wide, corner), (0, v), (wide, corner)], red * 0.45, 0.025)
