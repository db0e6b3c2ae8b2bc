"""The parameters of a synthetic person and of a shot."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SKINS = np.array([(243, 212, 190), (224, 180, 150), (198, 146, 112), (150, 104, 76), (102, 68, 50)], np.float64)
HAIRS = np.array([(28, 24, 22), (66, 44, 30), (116, 76, 44), (176, 138, 84), (128, 52, 30)], np.float64)
IRISES = np.array([(70, 46, 30), (110, 78, 44), (86, 112, 76), (84, 116, 150), (60, 66, 76)], np.float64)
Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Person:
    """A synthetic person. Proportions are about 1, slants in radians, colours RGB, age in years, beard 0..1.

    seed: determines the marks on the skin
    """

    seed: int
    skin: Colour
    hair: Colour
    iris: Colour
    face_width: float
    jaw: float
    chin: float
    hairline: float
    parting: float
    hair_length: float
    eye_size: float
    eye_slant: float
    eye_height: float
    brow_height: float
    brow_weight: float
    brow_arch: float
    nose_width: float
    nose_length: float
    nose_bridge: float
    mouth_width: float
    mouth_height: float
    lip: float
    cheek: float
    beard: float
    age: float


@dataclass(frozen=True)
class Shot:
    """The circumstances of a photo.

    yaw, pitch, roll: degrees; shift: eye distances; light: direction it comes from, x to the right and y down
    blur: SD in pixels of a photo of 250 pixels; noise: SD, on the scale 0..255; exposure, zoom: factors
    smile, mouth_open: 0..1
    """

    seed: int
    yaw: float
    pitch: float
    roll: float
    zoom: float
    shift: tuple[float, float]
    light: tuple[float, float]
    ambient: float
    exposure: float
    warmth: float
    blur: float
    noise: float
    smile: float
    mouth_open: float
    gaze: float


def person(seed: int) -> Person:
    """Return the person with this number, always the same one."""
    rng = np.random.default_rng([20, seed])

    def colour(palette: NDArray[np.float64]) -> Colour:
        low = rng.integers(len(palette) - 1)
        red, green, blue = palette[low] + (palette[low + 1] - palette[low]) * rng.random() + rng.normal(0, 5, 3)
        return float(red), float(green), float(blue)

    def about(spread: float) -> float:
        return float(np.exp(spread * _bounded(rng)))

    return Person(
        seed=seed,
        skin=colour(SKINS),
        hair=colour(HAIRS),
        iris=colour(IRISES),
        face_width=about(0.08),
        jaw=about(0.13),
        chin=about(0.08),
        hairline=about(0.08),
        parting=float(rng.uniform(-0.6, 0.6)),
        hair_length=float(rng.choice([0.2, 0.4, 1.3])) * about(0.2),
        eye_size=about(0.14),
        eye_slant=0.07 * _bounded(rng),
        eye_height=about(0.15),
        brow_height=about(0.2),
        brow_weight=about(0.35),
        brow_arch=0.05 + 0.05 * _bounded(rng),
        nose_width=about(0.18),
        nose_length=about(0.12),
        nose_bridge=about(0.3),
        mouth_width=about(0.12),
        mouth_height=about(0.06),
        lip=about(0.3),
        cheek=about(0.4),
        beard=float(rng.choice([0, 0, 0, rng.uniform(0.2, 0.8)])),
        age=float(rng.uniform(18, 75)),
    )


def shot(who: Person, seed: int, strength: float = 1.0) -> Shot:
    """Draw the circumstances of a person's photo with this number. A strength of 0 is a passport photo."""
    rng = np.random.default_rng([21, who.seed, seed])

    def around(spread: float) -> float:
        return strength * spread * _bounded(rng)

    return Shot(
        seed=seed,
        yaw=around(11),
        pitch=around(6),
        roll=around(4),
        zoom=float(np.exp(around(0.05))),
        shift=(around(0.12), around(0.12)),
        light=(around(0.8), -0.3 + around(0.5)),
        ambient=0.55 + around(0.12),
        exposure=float(np.exp(around(0.18))),
        warmth=around(0.08),
        blur=abs(around(0.6)),
        noise=2 + 4 * abs(around(1.0)),
        smile=strength * float(rng.random()),
        mouth_open=max(0.0, around(0.5)),
        gaze=around(0.25),
    )


def _bounded(rng: np.random.Generator) -> float:
    """Draw a standard normal number, limited to two SD."""
    return max(-2.0, min(2.0, float(rng.standard_normal())))
