"""Draw a gallery, queries and strangers from LFW and the distractors, under numbers instead of names."""

import io
import tarfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.cli.datasets.lfw import LfwDataset

DISTRACTORS = "distractors-utkface.tar"
MIN_PHOTOS_PER_PERSON = 3
MAX_ENROLLED_PER_PERSON = 20


@dataclass(frozen=True)
class Size:
    """The numbers of people: enrolled, searched for, and strangers of both kinds."""

    people: int
    queries: int
    lfw_strangers: int
    distractors: int


FULL = Size(500, 300, 100, 1000)
QUICK = Size(150, 60, 40, 100)


@dataclass(frozen=True)
class Photo:
    """A photo. person: its label, such as `person-0017`, empty for a stranger; data: the bytes of the file"""

    person: str
    data: bytes


@dataclass(frozen=True)
class Draw:
    """A draw. gallery: photos to enrol; queries: other photos of enrolled people; all others: photos of strangers"""

    gallery: list[Photo]
    queries: list[Photo]
    lfw_strangers: list[Photo]
    distractors: list[Photo]


class PhotoSets:
    """All photos of LFW by person, and the distractors, read once."""

    def __init__(self, data: Path) -> None:
        people: defaultdict[str, list[bytes]] = defaultdict(list)
        for name, photo in sorted(LfwDataset(data).photos(), key=lambda pair: pair[0]):
            people[name.split("/")[-2]].append(photo)
        self._people = [people[name] for name in sorted(people)]
        self._distractors = read_tar(data / DISTRACTORS)

    def draw(self, seed: int, size: Size, *, everybody: bool = False) -> Draw:
        """Draw `size.people` people with three or more photos; `size.queries` of them have one photo held back as a
        query.

        everybody: enrol all people of LFW except the strangers, with all their photos and the same queries; otherwise
            only the drawn people, with at most MAX_ENROLLED_PER_PERSON photos each
        """
        rng = np.random.default_rng(seed)
        able = [i for i, photos in enumerate(self._people) if len(photos) >= MIN_PHOTOS_PER_PERSON]
        chosen = rng.permutation(able)[: size.people].tolist()
        searched = set(rng.permutation(chosen)[: size.queries].tolist())
        others = rng.permutation(np.setdiff1d(np.arange(len(self._people)), chosen)).tolist()
        gallery: list[Photo] = []
        queries: list[Photo] = []
        for number, person in enumerate(chosen):
            photos = [self._people[person][i] for i in rng.permutation(len(self._people[person]))]
            if person in searched:
                queries.append(Photo(_label(number), photos.pop()))
            kept = photos if everybody else photos[:MAX_ENROLLED_PER_PERSON]
            gallery += [Photo(_label(number), photo) for photo in kept]
        strangers, rest = others[: size.lfw_strangers], others[size.lfw_strangers :]
        lfw_strangers = [Photo("", self._people[i][int(rng.integers(len(self._people[i])))]) for i in strangers]
        if everybody:
            for number, person in enumerate(rest, len(chosen)):
                gallery += [Photo(_label(number), photo) for photo in self._people[person]]
        distractors = rng.permutation(len(self._distractors))[: size.distractors].tolist()
        return Draw(gallery, queries, lfw_strangers, [Photo("", self._distractors[i]) for i in distractors])


def _label(number: int) -> str:
    return f"person-{number:04d}"


def read_tar(path: Path) -> list[bytes]:
    """Read the photos of an archive, in the order of their names."""
    photos: dict[str, bytes] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None and member.name.lower().endswith((".jpg", ".jpeg", ".png")):
                photos[member.name] = file.read()
    return [photos[name] for name in sorted(photos)]


def write_tar(photos: Iterable[Photo], path: Path) -> int:
    """Write photos as `person-0017/0003.jpg` and so on, as `:import` expects; return their number."""
    counts: defaultdict[str, int] = defaultdict(int)
    with tarfile.open(path, "w") as tar:
        for photo in photos:
            counts[photo.person] += 1
            entry = tarfile.TarInfo(f"{photo.person}/{counts[photo.person]:04d}.jpg")
            entry.size = len(photo.data)
            tar.addfile(entry, io.BytesIO(photo.data))
    return sum(counts.values())
