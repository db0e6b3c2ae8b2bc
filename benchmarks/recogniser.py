"""Compare ways to run dlib_resnet: the stored crop or a chip of its own, mirrored or not, float32 or int8.

    python -m benchmarks.recogniser accuracy --data DATA --cache DIR [--draws 10]
    python -m benchmarks.recogniser speed --data DATA --cache DIR
    python -m benchmarks.recogniser import --data DATA [--photos 500]
    python -m benchmarks.recogniser search [--faces 3000] [--recogniser dlib_resnet]

accuracy: LFW deep-funneled, the centre face of each photo; closed set and people never seen (mAP, 1-call@1, 1-call@10),
verification (view 2), and an open-set trial: 500 people, 300 queries, 100 strangers of LFW and 1,000 distractors
(UTKFace), five seeds: right person first, and rightly named where 1 % of these strangers are named, by the nearest face
and by the mean of nearest face and subject mean. speed: milliseconds a face on one thread (int8 needs `onnx`).
import: processor milliseconds that a worker spends on a photo of LFW, from bytes to rows, by LBP and dlib_resnet;
`benchmarks.importing` has the rate by the clock. search: milliseconds of a search by photo over HTTP, drawn people.
"""

import argparse
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
from PIL import Image as Pillow

from app.cli.datasets.lfw import LfwDataset, find_centre_face
from app.cli.private_service import run_service
from app.collections import service as collections
from app.collections.schemas import CollectionIn
from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import writing
from app.enrolment.photo_analysis import EnrolmentRequest, analyse_photo
from app.enrolment.preparation import prepare_photos
from app.enrolment.store import enrol_photos
from app.resources import Resources, open_resources
from app.storage.recognisers.default_recogniser import ensure_built_in
from benchmarks.importing import read_cpu_seconds
from ml import images, synthetic_faces
from ml.descriptors.common.dlib_network import INPUT_NAME, build_model
from ml.descriptors.common.dlib_weights import read_network
from ml.descriptors.dlib_resnet import CHIP_PIXELS, CHIP_POINTS, CROPS_PER_BATCH, cut_chips, find_weights, read_weights
from ml.evaluation.protocols import number_people, read
from ml.evaluation.report import rank_protocol, summarise
from ml.evaluation.verification import accuracy, best_threshold
from ml.evaluation.verification_pairs import read_folds
from ml.geometry import similarity, warp
from ml.pipeline import default_front_end
from ml.types import Crops, Ids, Rows
from papers.harness.photos import ARCHIVES, PhotoArchive, Photos

VARIANTS = {
    "stored crop": (False, False),
    "stored crop, mirrored average": (False, True),
    "own 150 chip": (True, False),
    "own 150 chip, mirrored average": (True, True),
}
PEOPLE, QUERIES, LFW_STRANGERS, STRANGERS, SEEDS, FPIR = 500, 300, 100, 1000, 5, 0.01
ROUNDS, CHUNK, INGESTED = 200, 512, 128


@lru_cache(1)
def session(model: str | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    graph = model or build_model(read_network(read_weights(find_weights())))
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def describe(chips: Crops) -> tuple[Rows, Rows]:
    """Describe (N, 150, 150, 3) chips: (N, 128) of unit length, plain, and averaged with the mirror image."""
    run = session().run
    parts = [chips[at : at + CROPS_PER_BATCH] for at in range(0, len(chips), CROPS_PER_BATCH)]
    plain, mirrored = (
        unit(np.concatenate([run(None, {INPUT_NAME: np.ascontiguousarray(part[:, :, ::step])})[0] for part in parts]))
        for step in (1, -1)
    )
    return plain, unit(plain + mirrored)


def unit(rows: Rows) -> Rows:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@lru_cache(1)
def front_end() -> Any:
    return default_front_end()


def chip(data: bytes) -> Crops:
    """Cut a chip from the photo itself, by its landmarks."""
    image = images.read(data)
    face = find_centre_face(front_end(), image)
    return warp(image, similarity(face.landmarks, CHIP_POINTS), (CHIP_PIXELS, CHIP_PIXELS))


def chips_of(photos: Photos, photo_set: str, own_chip: bool) -> Iterator[Crops]:
    """Iterate over the chips, a few hundred at a time, in the order of the names."""
    if not own_chip:
        crops = photos.crops(photo_set, "colour")
        yield from (cut_chips(np.ascontiguousarray(crops[at : at + CHUNK])) for at in range(0, len(crops), CHUNK))
        return
    source = photos.lfw if photo_set == "lfw" else PhotoArchive(photos.data / ARCHIVES[photo_set])
    data = [content for _, content in sorted(source.photos())]
    with ProcessPoolExecutor() as pool:
        for at in range(0, len(data), CHUNK):
            yield np.stack(list(pool.map(chip, data[at : at + CHUNK], chunksize=32)))


def rows_of(photos: Photos, photo_set: str, own_chip: bool, mirrored: bool) -> Rows:
    """Return (N, 128) rows in the order of the names; they are computed once."""
    kept = photos.cache / photo_set / f"recogniser-{'chip' if own_chip else 'crop'}.npy"
    if not kept.exists():
        with ProcessPoolExecutor() as pool:
            described = list(pool.map(describe, chips_of(photos, photo_set, own_chip)))
        np.save(kept, np.stack([np.concatenate(side) for side in zip(*described, strict=True)]))
    rows: Rows = np.load(kept)[int(mirrored)]
    return rows


def measure_accuracy(photos: Photos, own_chip: bool, mirrored: bool, draws: int) -> list[float]:
    """Return the figures in percent, in the order of the table."""
    rows, names = rows_of(photos, "lfw", own_chip, mirrored), photos.names("lfw")
    distractors = rows_of(photos, "distractors", own_chip, mirrored)
    values = []
    for kind in ("queries", "disjoint"):
        ranked = [rank_protocol(rows, read(f"{kind}-{k}", photos.lfw.protocol, names)) for k in range(draws)]
        report = summarise(ranked, protocol=kind)
        values += [report.mean_average_precision.value, report.ncall["1"].value, report.ncall["10"].value]
    return [
        100 * f
        for f in (
            *values,
            measure_verification(rows, names, photos),
            *open_set(rows, number_people(names), distractors),
        )
    ]


def measure_verification(rows: Rows, names: list[str], photos: Photos) -> float:
    """Return the accuracy on view 2, with the threshold of each fold chosen on the others."""
    folds = [
        (((rows[f.pairs.index[:, 0]] - rows[f.pairs.index[:, 1]]) ** 2).sum(1).astype(np.float64), f.pairs.same)
        for f in read_folds(photos.lfw.protocol / "pairs.txt", names)
    ]
    right = []
    for fold in folds:
        others = [other for other in folds if other is not fold]
        threshold = best_threshold(*(np.concatenate(column) for column in zip(*others, strict=True)))
        right.append(accuracy(*fold, threshold))
    return float(np.mean(right))


def open_set(rows: Rows, people: Ids, distractors: Rows) -> Iterator[float]:
    trials = [_trial(rows, people, distractors, np.random.default_rng(seed)) for seed in range(SEEDS)]
    yield from np.mean(trials, axis=0).tolist()


def _trial(rows: Rows, people: Ids, distractors: Rows, draw: np.random.Generator) -> tuple[float, float, float]:
    several = draw.permutation(np.flatnonzero(np.bincount(people) >= 3))[:PEOPLE]
    shots = [draw.permutation(np.flatnonzero(people == one)) for one in several]
    held = draw.permutation(len(several))[:QUERIES]
    queries = rows[[shots[i][0] for i in held]]
    enrolled = [rows[own[1:]] for own in shots]
    others = draw.choice(np.flatnonzero(~np.isin(people, several)), LFW_STRANGERS, replace=False)
    strangers = np.concatenate([rows[others], distractors[draw.choice(len(distractors), STRANGERS, replace=False)]])
    nearest = [np.stack([(x @ own.T).max(1) for own in enrolled], 1) for x in (queries, strangers)]
    means = unit(np.stack([own.mean(0) for own in enrolled]))
    mixed = [(distances + x @ means.T) / 2 for distances, x in zip(nearest, (queries, strangers), strict=True)]
    right = float((nearest[0].argmax(1) == held).mean())
    return right, _named(*nearest, held), _named(*mixed, held)


def _named(distances: Rows, strangers: Rows, held: Ids) -> float:
    threshold = np.quantile(strangers.max(1), 1 - FPIR)
    return float(((distances.argmax(1) == held) & (distances.max(1) > threshold)).mean())


def show_accuracy(photos: Photos, draws: int) -> None:
    print("closed mAP, @1, @10; never seen mAP, @1, @10; view 2; open set: right first, named (face), named (mean)")
    for name, (own_chip, mirrored) in VARIANTS.items():
        print(f"{name:32}", *(f"{f:6.2f}" for f in measure_accuracy(photos, own_chip, mirrored, draws)), flush=True)


def show_speed(photos: Photos) -> None:
    chips = cut_chips(np.ascontiguousarray(photos.crops("lfw", "colour")[:256]))
    plain = describe(chips)[0]
    with tempfile.TemporaryDirectory() as folder:
        for name, model in {"float32": None, **quantise(Path(folder), chips)}.items():
            session.cache_clear()
            run = session(model).run
            embedded = unit(
                np.concatenate([run(None, {INPUT_NAME: chips[at : at + 16]})[0] for at in range(0, 256, 16)])
            )
            took = [median_ms(lambda n=n, run=run: run(None, {INPUT_NAME: chips[:n]})) / n for n in (1, 16)]
            cosine = (embedded * plain).sum(1)
            print(
                f"{name:16} one {took[0]:5.2f}, of 16 {took[1]:5.2f} ms a face; cosine to float32 {cosine.mean():.4f}"
            )
    print(f"{'chip of a crop':16} {median_ms(lambda: cut_chips(photos.crops('lfw', 'colour')[:1])):5.2f} ms")


def quantise(folder: Path, chips: Crops) -> dict[str, str]:
    """Quantise the network to 8 bits; static: with ranges from 200 of these chips. Returns the files."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static

    class ChipReader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.parts = iter(np.split(chips[:200], 10))

        def get_next(self) -> dict[str, Crops] | None:
            return next(({INPUT_NAME: part} for part in self.parts), None)

    plain = folder / "plain.onnx"
    plain.write_bytes(build_model(read_network(read_weights(find_weights()))))
    made = {name: str(folder / f"{name}.onnx") for name in ("int8 static", "int8 dynamic")}
    quantize_static(str(plain), made["int8 static"], ChipReader(), per_channel=True, weight_type=QuantType.QInt8)
    quantize_dynamic(str(plain), made["int8 dynamic"], weight_type=QuantType.QUInt8)
    return made


def median_ms(work: Callable[[], object], rounds: int = 50) -> float:
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        took.append(1000 * (time.perf_counter() - began))
    return float(np.median(took))


def show_import(data: Path, photos: int) -> None:
    sample = [content for _, content in islice(LfwDataset(data).photos(), photos + INGESTED)]
    spent = {name: _import_ms(name, sample) for name in ("lbp", "dlib_resnet")}
    for name, milliseconds in spent.items():
        print(f"import, {name}: {milliseconds:.2f} CPU ms per photo")
    print(f"rate with dlib_resnet over rate with LBP: {spent['lbp'] / spent['dlib_resnet']:.2f}")


def _import_ms(recogniser: str, sample: list[bytes]) -> float:
    """Enrol in chunks, like a worker, and return the milliseconds per photo. The first chunk does not count."""
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(home=Path(home), default_recogniser=recogniser, wpca_after_faces=0)
        upgrade_database(settings.database, settings.home)
        with open_resources(settings) as resources:
            with writing(resources.database) as session:
                ensure_built_in(session, resources.models, resources.default_recogniser)
                collections.put_collection(session, resources, "c", CollectionIn())
            _enrol(resources, sample[:INGESTED])
            began = time.process_time()
            for at in range(INGESTED, len(sample), INGESTED):
                _enrol(resources, sample[at : at + INGESTED])
            return 1000 * (time.process_time() - began) / (len(sample) - INGESTED)


def _enrol(resources: Resources, sample: list[bytes]) -> None:
    looked = [analyse_photo(resources, content, EnrolmentRequest(max_faces=1)) for content in sample]
    enrol_photos(resources, "c", looked, prepare_photos(resources, "c", looked))


def show_search(faces: int, recogniser: str) -> None:
    """Time searches. The server has one core of its own."""
    with (
        tempfile.TemporaryDirectory() as home,
        run_service(Path(home), default_recogniser=recogniser, inference_slots="1", workers="1") as client,
    ):
        client.put("/v1/collections/c").raise_for_status()
        folder = Path(home) / "photos"
        for number in range(faces // 3):
            (folder / f"p{number}").mkdir(parents=True)
            for shot in range(3):
                path = folder / f"p{number}" / f"{shot}.png"
                path.write_bytes(images.encode_png(synthetic_faces.draw(synthetic_faces.person(number), shot)))
        packed = Path(home) / "photos.tar"
        subprocess.run(["tar", "-cf", str(packed), "-C", str(folder), "."], check=True)
        answer = client.post("/v1/collections/c:import", params={"aligned": "true"}, content=packed.read_bytes())
        job = answer.raise_for_status().headers["Location"]
        while not client.get(job).json()["finished_at"]:
            time.sleep(1)
        _time_searches(client, recogniser)


def _time_searches(client: httpx.Client, recogniser: str) -> None:
    buffer = io.BytesIO()
    Pillow.fromarray(synthetic_faces.draw(synthetic_faces.person(1), 9)).save(buffer, "JPEG", quality=92)

    def search() -> None:
        sent = {"file": ("q.jpg", buffer.getvalue())}
        answer = client.post("/v1/collections/c/search", files=sent).raise_for_status()
        assert answer.json()["faces"], "the face was not found"

    for _ in range(10):
        search()
    before = _server_seconds()
    took = sorted(median_ms(search, 1) for _ in range(ROUNDS))
    spent = 1000 * (_server_seconds() - before) / ROUNDS
    print(f"search by photo, {recogniser}: median {took[ROUNDS // 2]:.1f} ms; {spent:.1f} CPU ms of the server")


def _server_seconds() -> float:
    """Return the CPU seconds of the API, a child of this process, without its workers."""
    return sum(seconds for process, seconds in read_cpu_seconds(os.getpid()).items() if process != os.getpid())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("accuracy", "speed", "import", "search"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--faces", type=int, default=3000)
    parser.add_argument("--photos", type=int, default=500)
    parser.add_argument("--recogniser", default="dlib_resnet")
    wanted = parser.parse_args()
    if wanted.what == "search":
        return show_search(wanted.faces, wanted.recogniser)
    if wanted.what == "import" and wanted.data is not None:
        return show_import(wanted.data, wanted.photos)
    if wanted.data is None or wanted.cache is None:
        sys.exit("--data and --cache are needed")
    photos = Photos(wanted.data, wanted.cache)
    return show_accuracy(photos, wanted.draws) if wanted.what == "accuracy" else show_speed(photos)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
