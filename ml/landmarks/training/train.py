"""`python -m ml.landmarks.training.train --data DIR --yunet FILE --out FILE`: makes the landmark model that ships.

With `--lessons FILE.npz` what the photos teach is kept there, and read from there when it is there.
DIR holds `age*` and `identities*`, as folders or tars of photos, each of one face. Nothing else in it is read:
never LFW, by which the model is measured.
"""

import argparse
import logging
import tarfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
from joblib import cpu_count
from numpy.typing import NDArray

from ml.detectors.base import centre_face
from ml.detectors.hog import Hog
from ml.detectors.yunet import Yunet
from ml.errors import LikenessError
from ml.geometry import grey, moved, warp
from ml.images import read
from ml.landmarks.common.patch_frames import WIDE, of_points, widened
from ml.landmarks.median import Median
from ml.landmarks.training.fit import LandmarkRecipe, accuracy, check_export, export, fit

SOURCES = ("age*", "identities*")
STEADY = 0.15
"""A photo is left out where YuNet's runs lie further than this from their median, in eye distances."""
HELD_OUT = 20
"""Of so many photos one is kept to check by."""
log = logging.getLogger("likeness.landmarks")


def photos(data: Path) -> Iterator[bytes]:
    """Every JPEG of the sources, sorted."""
    for source in sorted(path for pattern in SOURCES for path in data.glob(pattern)):
        if source.is_dir():
            yield from (path.read_bytes() for path in sorted(source.rglob("*.jpg")))
        elif source.suffix == ".tar":
            with tarfile.open(source) as tar:
                members = sorted((m for m in tar if m.name.endswith(".jpg")), key=lambda m: m.name)
                yield from (file.read() for m in members if (file := tar.extractfile(m)))


class Teacher:
    """Shows where the points of a photo lie; made anew in each process."""

    def __init__(self, yunet: Path) -> None:
        cv2.setNumThreads(1)
        self.hog, self.median = Hog(), Median(Yunet(yunet))

    def lesson(self, data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.float32]] | None:
        """A wide grey patch and its points; None where no face is seen, or not steadily.

        The patch is (WIDE, WIDE), the points are (5, 2).
        """
        try:
            image = read(data)
        except LikenessError:
            return None
        face = centre_face(self.hog.detect(image), image)
        runs = self.median.runs(image, face) if face else np.empty((0, 5, 2), np.float32)
        if len(runs) < len(self.median.sides):
            return None
        points = np.median(runs, axis=0)
        away = np.linalg.norm(runs - points, axis=2) / np.linalg.norm(points[1] - points[0])
        if np.median(away, axis=0).max() > STEADY:
            return None
        frame = widened(of_points(points))
        return grey(warp(image, frame, (WIDE, WIDE))), moved(frame, points)


_teachers: list[Teacher] = []


def _start(yunet: Path) -> None:
    _teachers.append(Teacher(yunet))


def _lesson(data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.float32]] | None:
    return _teachers[0].lesson(data)


def lessons(data: Path, yunet: Path) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """(n, WIDE, WIDE) patches and their (n, 5, 2) points; a process for each core."""
    with ProcessPoolExecutor(cpu_count(), get_context("spawn"), _start, (yunet,)) as pool:
        examples = [one for one in pool.map(_lesson, photos(data), chunksize=32) if one]
    return np.stack([patch for patch, _ in examples]), np.stack([points for _, points in examples])


def main() -> None:
    """Make the landmark model that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m ml.landmarks.training.train", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--yunet", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=LandmarkRecipe.epochs)
    parser.add_argument("--lessons", type=Path)
    args = parser.parse_args()
    check_export()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if args.lessons and args.lessons.exists():
        kept = np.load(args.lessons)
        wide, points = kept["wide"], kept["points"]
    else:
        wide, points = lessons(args.data, args.yunet)
        if args.lessons:
            np.savez(args.lessons, wide=wide, points=points)
    known = np.arange(len(wide)) % HELD_OUT != 0
    log.info("%d photos to learn from, %d to check by", known.sum(), (~known).sum())
    recipe = LandmarkRecipe(epochs=args.epochs)
    model = fit(wide[known], points[known], recipe, lambda epoch, loss: log.info("epoch %d: %.4f", epoch, loss))
    for fine, when in ((0.0, "first"), (1.0, "second")):
        right = accuracy(model, wide[~known], points[~known], replace(recipe, fine=fine))
        log.info("%s pass, one look: all five points within 15 %% on %.1f %%", when, 100 * right)
    export(model, args.out)


if __name__ == "__main__":
    main()
