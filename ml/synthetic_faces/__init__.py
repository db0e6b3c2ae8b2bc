"""Draw faces of people who do not exist, for the demo and the tests. They need no download and show no real person.

A person is a set of proportions, colours and marks. A shot adds what a photograph adds: light, pose, expression, lens
and noise, enough that people are hard to tell apart by pixels alone. Geometry is in eye distances, with the origin at
the centre of the five landmarks, x to the right and y down.
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
    """Draw a (size, size, 3) uint8 RGB photo with the face at the centre and an eye distance of 0.18 * size.

    shot_seed: determines the circumstances of the photo
    smile: from 0 (none) to 1 (broad), None: as in the shot; age: in years, None: the person's
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
    """Draw a photo like `draw`: (size, size, 3) uint8 RGB, and its (5, 2) landmarks."""
    how = shot(who, shot_seed, strength)
    how = how if smile is None else replace(how, smile=smile)
    who = who if age is None else replace(who, age=age)
    relief = lens.relief(who, how, size)
    colours = paint.face(who, how, size)
    return lens.photo(colours, lens.light(relief, who, how), relief, who, how)
