"""Measure the accuracy and speed of face and landmark detection on LFW (deep-funneled).

    python -m benchmarks.landmarks --data DIR --yunet FILE [--every N] [--json FILE]

DIR: the tars `lfw*.tar`, or a folder of `<person>/<photo>.jpg`. The reference is the median of ten YuNet runs (five
sizes, with and without mirroring) at the centre of the photo, independent of our detector. Undetected faces count as
wrong. `--every N` uses every Nth photo.
"""

import argparse
import json
import tarfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from time import perf_counter

import cv2
import numpy as np
from numpy.typing import NDArray

from ml.detectors.base import Detector, centre_face
from ml.detectors.hog import Hog
from ml.detectors.yunet import Yunet
from ml.images import read
from ml.landmarks.base import MIRRORED_ORDER
from ml.landmarks.median import Median
from ml.landmarks.regressor import Regressor
from ml.pipeline import default_front_end
from ml.quality import assess
from ml.types import Box, Detection, Image, Points

MIDDLE = Detection(Box(71, 80, 108, 108), 1.0)
"""The position of LFW's faces; with `Median`'s context nearly the whole photo."""
NOWHERE: Points = np.full((5, 2), np.nan, np.float32)


def iterate_photos(data: Path) -> Iterator[tuple[str, bytes]]:
    """Iterate over LFW's photos in the order of their names, `Name/Name_0001.jpg`, from a folder or from tars."""
    if tars := sorted(data.glob("lfw*.tar")):
        for path in tars:
            with tarfile.open(path) as tar:
                members = sorted((m for m in tar if m.isfile()), key=lambda m: m.name)
                yield from ((m.name.removeprefix("./"), file.read()) for m in members if (file := tar.extractfile(m)))
    else:
        yield from ((path.relative_to(data).as_posix(), path.read_bytes()) for path in sorted(data.glob("*/*.jpg")))


@dataclass(frozen=True)
class LandmarkPipeline:
    """A detector, with a landmarker or the detector's own landmarks."""

    detector: Detector
    landmarks: Regressor | None

    def points(self, image: Image) -> Points:
        face = centre_face(self.detector.detect(image), image)
        if face is None:
            return NOWHERE
        located = self.landmarks.locate(image, face) if self.landmarks else face.landmarks
        return NOWHERE if located is None else located


@lru_cache(1)
def load_pipelines(yunet: Path) -> tuple[dict[str, LandmarkPipeline], Median]:
    cv2.setNumThreads(1)
    net, ours = Yunet(yunet), Regressor()
    by_name = {
        "hog, regressor": LandmarkPipeline(Hog(), ours),
        "yunet, regressor": LandmarkPipeline(net, ours),
        "yunet, once": LandmarkPipeline(net, None),
    }
    return by_name, Median(net)


def locate_landmarks(task: tuple[bytes, Path]) -> tuple[Points, dict[str, tuple[Points, Points]]]:
    """Return the reference for a photo, and each pipeline's landmarks, plain and mirrored (mapped back)."""
    data, yunet = task
    image = read(data)
    flipped = np.ascontiguousarray(image[:, ::-1])
    known, median = load_pipelines(yunet)
    truth = median.locate(image, MIDDLE)

    def mirror_back(points: Points) -> Points:
        return np.column_stack([image.shape[1] - 1 - points[:, 0], points[:, 1]])[MIRRORED_ORDER]

    points_of = {name: (way.points(image), mirror_back(way.points(flipped))) for name, way in known.items()}
    return (NOWHERE if truth is None else truth), points_of


def measure_largest_error(
    a: NDArray[np.float32], b: NDArray[np.float32], truth: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return (n,) the largest error of the five landmarks in eye distances; infinite if a face is missing."""
    eyes = np.linalg.norm(truth[:, 1] - truth[:, 0], axis=1)
    away = np.linalg.norm(a - b, axis=2).max(1) / eyes
    return np.where(np.isfinite(away), away, np.inf)


def measure_accuracy(data: Path, yunet: Path, every: int) -> dict[str, dict[str, float]]:
    """Measure each pipeline, in percent of all faces."""
    tasks = ((photo, yunet) for _, photo in islice(iterate_photos(data), 0, None, every))
    with ProcessPoolExecutor(cpu_count(), get_context("spawn")) as pool:
        looks = list(pool.map(locate_landmarks, tasks, chunksize=16))
    truth = np.array([t for t, _ in looks])
    table = {}
    for name in looks[0][1]:
        plain, mirrored = (np.array([points_of[name][side] for _, points_of in looks]) for side in (0, 1))
        off, flip_error = measure_largest_error(plain, truth, truth), measure_largest_error(plain, mirrored, truth)
        table[name] = {
            "faces": float(len(looks)),
            "without a consensus": float(np.isnan(truth[:, 0, 0]).sum()),
            "detected": 100 * float(np.isfinite(plain[:, 0, 0]).mean()),
            "within 15 %": 100 * float((off < 0.15).mean()),
            "within 10 %": 100 * float((off < 0.10).mean()),
            "mirror within 10 %": 100 * float((flip_error < 0.10).mean()),
            "median off, %": 100 * float(np.median(off)),
        }
    return table


def measure_speed(data: Path, photos_timed: int = 300) -> dict[str, float]:
    """Return the milliseconds of each step of the default front end on one thread, as medians over photos."""
    cv2.setNumThreads(1)
    front, rows = default_front_end(), []
    for _, photo in islice(iterate_photos(data), 0, photos_timed * 10, 10):
        marks = [perf_counter()]
        image = read(photo)
        marks.append(perf_counter())
        face = centre_face(front.detector.detect(image), image) or MIDDLE
        marks.append(perf_counter())
        points = front.landmarks.locate(image, face)
        assert points is not None
        marks.append(perf_counter())
        crops = front.aligner.crops(image, points)
        marks.append(perf_counter())
        assess(crops["grey"], points, face.confidence)
        marks.append(perf_counter())
        rows.append(np.diff(marks))
    steps = ("decode", "detect", "landmarks", "align", "quality")
    return dict(zip(steps, (1e3 * np.median(rows, axis=0)).tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.landmarks", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--yunet", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    times = measure_speed(args.data)
    print("ms a photo, one thread: " + ", ".join(f"{step} {ms:.2f}" for step, ms in times.items()))
    table = measure_accuracy(args.data, args.yunet, args.every)
    columns = list(next(iter(table.values())))
    print(f"{'LFW deep-funneled, centre face':32}" + "".join(f"{name:>21}" for name in columns))
    for way, row in table.items():
        print(f"{way:32}" + "".join(f"{row[name]:21.1f}" for name in columns))
    if args.json:
        args.json.write_text(json.dumps({"ms": times, "ways": table}, indent=1))


if __name__ == "__main__":
    main()
