"""Turn a painted face into a photo: its relief, the light on it, the pose and the camera."""

from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from ml.synthetic_faces.paint import EYE_DISTANCE_SHARE, mouth_corner
from ml.synthetic_faces.people import Person, Shot
from ml.types import Image, Points

Grid = NDArray[np.float32]
PIVOT_HEIGHT = 0.8
"""Points of the relief at this height do not move when the head turns."""


@lru_cache(4)
def _axis(size: int) -> Grid:
    """Return the (size,) positions of the pixels of a row or column, in eye distances."""
    return ((np.arange(size) - (size - 1) / 2) / (EYE_DISTANCE_SHARE * size)).astype(np.float32)


def _hill(size: int, u: float, v: float, wide: float, high: float, rise: float) -> Grid:
    """Return a Gaussian bump at (u, v)."""
    along = _axis(size)
    return np.outer(rise * np.exp(-(((along - v) / high) ** 2)), np.exp(-(((along - u) / wide) ** 2)))


def relief(who: Person, how: Shot, size: int) -> Grid:
    """Return the height of the face towards the camera, (size, size), in eye distances."""
    along = _axis(size)
    inside = 1 - (along / (1.15 * who.face_width))[None] ** 2 - ((along + 0.25) / 1.75)[:, None] ** 2
    z: Grid = np.float32(1.1) * np.sqrt(np.maximum(inside, np.float32(0.02)))
    tip = 0.09 * who.nose_length
    ramp = np.clip((along + 0.5) / (tip + 0.5), 0, 1) ** (1 / who.nose_bridge)
    ramp *= np.exp(-((np.maximum(along - tip, 0) / 0.08) ** 2))
    z += np.outer(0.32 * ramp, np.exp(-((along / (0.14 * who.nose_width)) ** 2)))
    for side in (-1, 1):
        z += _hill(size, 0.48 * side, -0.5 * who.eye_height**0.1, 0.3, 0.17, -0.16)
        z += _hill(size, 0.5 * side, -0.82 * who.brow_height**0.2, 0.35, 0.1, 0.07)
        z += _hill(size, 0.66 * side, 0.12, 0.28, 0.22, 0.12 * (who.cheek + 0.5 * how.smile))
        z += _hill(size, 0.15 * who.nose_width * side, tip + 0.02, 0.08, 0.07, 0.08)
    z += _hill(size, 0, 0.46 * who.mouth_height, 0.32, 0.1, 0.07 * who.lip)
    z += _hill(size, 0, 0.66 * who.mouth_height, 0.3, 0.06, -0.05)
    z += _hill(size, 0, 1.0 * who.chin, 0.3 * who.jaw, 0.2, 0.1)
    return z


def light(z: Grid, who: Person, how: Shot) -> Grid:
    """Compute the brightness of each point, (size, size), from a lamp, ambient light (Lambert) and skin texture."""
    size = len(z)
    du = cv2.Sobel(z, cv2.CV_32F, 1, 0, scale=EYE_DISTANCE_SHARE * size / 8)
    dv = cv2.Sobel(z, cv2.CV_32F, 0, 1, scale=EYE_DISTANCE_SHARE * size / 8)
    x, y, forward = (np.array([*how.light, 1.0]) / np.linalg.norm([*how.light, 1.0])).astype(np.float32)
    lit = (forward - x * du - y * dv) / np.sqrt(1 + du * du + dv * dv)
    rng = np.random.default_rng([25, who.seed])
    fine = 1 + rng.normal(0, 0.04, (48, 48)) + cv2.resize(rng.normal(0, 0.05, (8, 8)), (48, 48))
    texture = cv2.resize(fine.astype(np.float32), (size, size), interpolation=cv2.INTER_LINEAR)
    return np.asarray((np.float32(how.ambient) + np.float32(0.75) * np.maximum(lit, 0)) * texture, np.float32)


def photo(colours: Image, bright: Grid, z: Grid, who: Person, how: Shot) -> tuple[Image, Points]:
    """Turn the head and take the photo, with shift, exposure, colour, blur and noise.

    colours: (size, size, 3); bright, z: (size, size) brightness and height
    Returns the photo, (size, size, 3), and its (5, 2) landmarks.
    """
    size = len(z)
    scale, half = EYE_DISTANCE_SHARE * size, (size - 1) / 2
    spin = np.exp(1j * np.radians(how.roll)) * how.zoom
    linear = np.array([[spin.real, -spin.imag], [spin.imag, spin.real]])
    turn = np.sin(np.radians([how.yaw, how.pitch]))
    x, y = _whence(z, linear, turn, how)
    seen = cv2.remap(colours, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    shade = cv2.remap(bright, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    picture = _develop(np.asarray(seen, np.float32), np.asarray(shade, np.float32), who, how)
    flat = _five(who, how)
    at = np.clip(np.round(flat * scale + half), 0, size - 1).astype(int)
    near = flat + (z[at[:, 1], at[:, 0]] - PIVOT_HEIGHT)[:, None] * turn
    return picture, np.asarray((near @ linear.T + how.shift) * scale + half, np.float32)


def _five(who: Person, how: Shot) -> NDArray[np.float64]:
    wide, corner = mouth_corner(who, how)
    return np.array([(-0.5, -0.525), (0.5, -0.525), (0, 0.1 * who.nose_length), (-wide, corner), (wide, corner)])


def _whence(z: Grid, linear: NDArray[np.float64], turn: NDArray[np.float64], how: Shot) -> tuple[Grid, Grid]:
    """Return the position in the frontal picture of each pixel of the photo. Points near the camera move more."""
    size = len(z)
    scale, half = np.float32(EYE_DISTANCE_SHARE * size), np.float32((size - 1) / 2)
    back = np.linalg.inv(linear).astype(np.float32)
    grid = np.arange(size, dtype=np.float32) - half
    u, v = grid[None] - np.float32(how.shift[0]) * scale, grid[:, None] - np.float32(how.shift[1]) * scale
    x, y = back[0, 0] * u + back[0, 1] * v + half, back[1, 0] * u + back[1, 1] * v + half
    depth = cv2.remap(cv2.blur(z, (5, 5)), x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE) - np.float32(
        PIVOT_HEIGHT
    )
    side, down = (turn * EYE_DISTANCE_SHARE * size).astype(np.float32)
    return x - side * depth, y - down * depth


def _develop(seen: Grid, shade: Grid, who: Person, how: Shot) -> Image:
    size = len(shade)
    rng = np.random.default_rng([24, who.seed, how.seed])
    cast = np.array([1 + how.warmth, 1, 1 - how.warmth], np.float32) * np.float32(how.exposure)
    seen *= shade[:, :, None] * cast
    if how.blur > 0.2:
        seen = np.asarray(cv2.GaussianBlur(seen, (0, 0), how.blur * size / 250), np.float32)
    seen += rng.standard_normal((size, size, 1), np.float32) * np.float32(how.noise)
    return np.clip(seen, 0, 255, out=seen).astype(np.uint8)
