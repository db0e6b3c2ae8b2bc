"""Drawn faces of people who do not exist: for the demo and the tests, which need no download and show nobody.

A person is a set of proportions, colours and marks; a shot adds what photographs add: light, pose, expression, lens and
noise, strong enough that pixels alone tell people apart poorly. Geometry is in eye distances, the origin amid the five
points, x to the right and y down.
"""

from dataclasses import replace

from ml.synthetic_faces import lens, paint
from ml.synthetic_faces.people import Person, Shot, person, shot
from ml.types import Image, Points

__all__ = ["Person", "Shot", "draw", "person", "photograph", "shot"]


def draw(
    who: Person,
    shot_seed: int,
    size: int = 250,
    *,
    smile: float | None = None,
    age: float | None = None,
    strength: float = 1.0,
) -> Image:
    """A (size, size, 3) uint8 RGB photo, the face amid it at an eye distance of 0.18 sizes.

    smile: 0 none .. 1 broad; age: years: where given, instead of the shot's and the person's own
    strength: of light, pose, expression, blur and noise; 0 is a passport photo
    """
    return photograph(who, shot_seed, size, smile=smile, age=age, strength=strength)[0]


def photograph(
    who: Person,
    shot_seed: int,
    size: int = 250,
    *,
    smile: float | None = None,
    age: float | None = None,
    strength: float = 1.0,
) -> tuple[Image, Points]:
    """What `draw` draws, and where the five points are in it. Returns (size, size, 3) and (5, 2) points."""
    how = shot(who, shot_seed, strength)
    how = how if smile is None else replace(how, smile=smile)
    who = who if age is None else replace(who, age=age)
    relief = lens.relief(who, how, size)
    colours = paint.face(who, how, size)
    return lens.photo(colours, lens.light(relief, who, how), relief, who, how)
