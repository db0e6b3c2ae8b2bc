"""Compare ways to align faces: LBP on LFW, the closed set of 003.

    python -m benchmarks.alignment --data DIR --protocol DIR --yunet FILE --cache DIR [--ways centre,ours] [--draws 1]

--data: LFW's tars or folder, as for `benchmarks.landmarks`; --protocol: folder of `queries-K.txt`; --cache: keeps the
crops of each way. Ways: `centre`, the centre of the deep-funneled photo, without landmarks; `yunet`, one run of YuNet;
`median`, ten runs of YuNet (slow: a minute per thousand photos and core); `ours`, the default front end.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path

import cv2
import numpy as np

from benchmarks.landmarks import MIDDLE, iterate_photos
from ml.aligners.similarity import Similarity
from ml.descriptors.lbp import Lbp
from ml.detectors.base import Detector, centre_face
from ml.detectors.hog import Hog
from ml.detectors.yunet import Yunet
from ml.embedders.base import TaskData, TrainingSet
from ml.embedders.ldml import Ldml
from ml.evaluation.protocols import Protocol
from ml.evaluation.protocols import read as read_protocol
from ml.evaluation.report import rank_protocol, summarise
from ml.geometry import grey
from ml.images import read
from ml.landmarks.median import Median
from ml.landmarks.regressor import Regressor
from ml.types import Crops, Image, Points, Rows

USUAL: Points = np.array([(103, 112), (147, 112), (125, 137), (107, 156), (144, 156)], np.float32)
"""Usual positions of the five landmarks in a deep-funneled photo, for faces that are not found."""


@lru_cache(1)
def load_parts(way: str, yunet: Path) -> tuple[Detector, Regressor | Median | None]:
    cv2.setNumThreads(1)
    if way == "ours":
        return Hog(), Regressor()
    return Yunet(yunet), Median(Yunet(yunet)) if way == "median" else None


def locate_points(image: Image, way: str, yunet: Path) -> Points:
    detector, landmarks = load_parts(way, yunet)
    face = MIDDLE if way == "median" else centre_face(detector.detect(image), image)
    if face is None:
        return USUAL
    located = landmarks.locate(image, face) if landmarks else face.landmarks
    return USUAL if located is None else located


def cut_crop(photo: tuple[str, bytes], way: str, yunet: Path) -> tuple[str, Crops]:
    image = read(photo[1])
    if way == "centre":
        return photo[0], grey(image)[40:210, 75:175]
    return photo[0], Similarity().crops(image, locate_points(image, way, yunet))["grey"]


def load_crops(way: str, data: Path, yunet: Path, cache: Path) -> tuple[list[str], Crops]:
    """Return the names and the (N, 170, 100) grey crops, which are cut once and stored."""
    kept = cache / f"{way}.npz"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(cpu_count(), get_context("spawn")) as pool:
            cuts = list(pool.map(partial(cut_crop, way=way, yunet=yunet), iterate_photos(data), chunksize=32))
        np.savez(kept, names=np.array([name for name, _ in cuts]), crops=np.stack([crop for _, crop in cuts]))
    held = np.load(kept)
    return held["names"].tolist(), held["crops"]


def embed_learned(rows: Rows, protocol: Protocol) -> Rows:
    """Embed by LDML, d = 32, fitted to the gallery."""
    people = protocol.people[protocol.training]
    task = TaskData("identity", protocol.training, people.astype(np.float64), people)
    return Ldml(dim=32).fit(TrainingSet(rows, (task,))).embed(rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.alignment", description=__doc__)
    for name in ("data", "protocol", "yunet", "cache"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--ways", default="centre,yunet,median,ours")
    parser.add_argument("--draws", type=int, default=1)
    args = parser.parse_args()
    print(f"LFW deep-funneled, LBP, closed set, {args.draws} draw(s): mAP, 1-call@10")
    for way in args.ways.split(","):
        names, faces = load_crops(way, args.data, args.yunet, args.cache)
        rows = np.concatenate([Lbp().describe(faces[i : i + 512]) for i in range(0, len(faces), 512)])
        protocols = [read_protocol(f"queries-{k}", args.protocol, names) for k in range(args.draws)]
        plain = summarise([rank_protocol(rows, p) for p in protocols], protocol="queries")
        fitted = summarise([rank_protocol(embed_learned(rows, p), p) for p in protocols], protocol="queries")
        for what, report in (("L2", plain), ("LDML d=32", fitted)):
            figures = report.mean_average_precision.value, report.ncall["10"].value
            print(f"{way:8} {what:10} {100 * figures[0]:6.1f} {100 * figures[1]:6.1f}", flush=True)


if __name__ == "__main__":
    main()
