"""`python -m ml.landmarks.training.train --data DIR --yunet FILE --out FILE`: train the landmark model that ships.

With `--examples FILE.npz`, the training examples are stored in that file, or read from it if it exists.
DIR holds `age*` and `identities*`: folders or tar files of photos of one face each. Nothing else in it is read. In
particular LFW is not, because the model is measured on it.
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
from ml.landmarks.common.patch_frames import WIDE_PATCH_PIXELS, frame_from_landmarks, widen_frame
from ml.landmarks.median import Median
from ml.landmarks.training.fit import LandmarkRecipe, accuracy, check_export, export, fit

SOURCE_PATTERNS = ("age*", "identities*")
MAX_SPREAD = 0.15
"""Photos whose YuNet runs lie further than this from their median are left out; in eye distances."""
PHOTOS_PER_TEST_PHOTO = 20
"""One photo out of so many is held out for testing."""
log = logging.getLogger("likeness.landmarks")


def iterate_photos(data: Path) -> Iterator[bytes]:
    """Read every JPEG file of the sources, in sorted order."""
    for source in sorted(path for pattern in SOURCE_PATTERNS for path in data.glob(pattern)):
        if source.is_dir():
            yield from (path.read_bytes() for path in sorted(source.rglob("*.jpg")))
        elif source.suffix == ".tar":
            with tarfile.open(source) as tar:
                members = sorted((m for m in tar if m.name.endswith(".jpg")), key=lambda m: m.name)
                yield from (file.read() for m in members if (file := tar.extractfile(m)))


class ExampleMaker:
    """Turns photos into training examples. Each process has one of its own."""

    def __init__(self, yunet: Path) -> None:
        cv2.setNumThreads(1)
        self.hog, self.median = Hog(), Median(Yunet(yunet))

    def make(self, data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.float32]] | None:
        """Return a wide grey patch (W, W) and its (5, 2) points; None if no face is found, or if the runs disagree."""
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
        if np.median(away, axis=0).max() > MAX_SPREAD:
            return None
        frame = widen_frame(frame_from_landmarks(points))
        return grey(warp(image, frame, (WIDE_PATCH_PIXELS, WIDE_PATCH_PIXELS))), moved(frame, points)


_example_makers: list[ExampleMaker] = []


def _start_process(yunet: Path) -> None:
    _example_makers.append(ExampleMaker(yunet))


def _make_example(data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.float32]] | None:
    return _example_makers[0].make(data)


def make_examples(data: Path, yunet: Path) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Make examples of all photos, with one process per core: (n, W, W) patches and their (n, 5, 2) points."""
    with ProcessPoolExecutor(cpu_count(), get_context("spawn"), _start_process, (yunet,)) as pool:
        examples = [one for one in pool.map(_make_example, iterate_photos(data), chunksize=32) if one]
    return np.stack([patch for patch, _ in examples]), np.stack([points for _, points in examples])


def main() -> None:
    """Train and export the landmark model as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m ml.landmarks.training.train", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--yunet", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=LandmarkRecipe.epochs)
    parser.add_argument("--examples", type=Path)
    args = parser.parse_args()
    check_export()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if args.examples and args.examples.exists():
        kept = np.load(args.examples)
        wide, points = kept["wide"], kept["points"]
    else:
        wide, points = make_examples(args.data, args.yunet)
        if args.examples:
            np.savez(args.examples, wide=wide, points=points)
    known = np.arange(len(wide)) % PHOTOS_PER_TEST_PHOTO != 0
    log.info("%d photos for training, %d for testing", known.sum(), (~known).sum())
    recipe = LandmarkRecipe(epochs=args.epochs)
    model = fit(wide[known], points[known], recipe, lambda epoch, loss: log.info("epoch %d: %.4f", epoch, loss))
    for fine, when in ((0.0, "first"), (1.0, "second")):
        right = accuracy(model, wide[~known], points[~known], replace(recipe, fine=fine))
        log.info("%s pass, one view: all five points within 15 %% of the eye distance on %.1f %%", when, 100 * right)
    export(model, args.out)


if __name__ == "__main__":
    main()
