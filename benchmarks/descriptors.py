"""Measure the time of each descriptor on one thread, and its accuracy on LFW with WPCA-cosine.

    python -m benchmarks.descriptors [--only NAME[+NAME],...] [--option NAME.KEY=JSON ...] [--dim 128] [--draw 0]
                                     [--grey FILE.npy --names FILE --protocol DIR [--colour FILE.npy]] [--json FILE]

Time: CPU milliseconds per face, the median of several rounds over 200 faces: those given, or smooth random noise. A
descriptor that needs a file is skipped unless --option gives it, such as onnx.manifest='"model.json"'. Accuracy is
measured if LFW's crops are given: (N, 170, 100) grey and, for colour descriptors, (N, 112, 112, 3) colour, uint8, in
the order of the names, one `Name/Name_0001.jpg` per line. DIR has `queries-K.txt` (closed set) and `disjoint-K.txt`
(people never seen). A+B concatenates two descriptors.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import cv2
import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from benchmarks.lbp import draw_crops
from ml import registry
from ml.descriptors.base import CROP_SHAPES
from ml.descriptors.common.crop_descriptors import list_crop_descriptors
from ml.embedders.base import TrainingSet
from ml.embedders.wpca import Wpca
from ml.evaluation.protocols import Protocol, read
from ml.evaluation.report import rank_protocol
from ml.evaluation.retrieval import average_precisions, n_call
from ml.model import Recipe
from ml.types import CropKind, Crops, Rows, Spec

FACES, ROUNDS, AT_ONCE = 200, 5, 500
KINDS = ("queries", "disjoint")
Options = Mapping[str, dict[str, Any]]


def list_missing_options(part: str, options: Options) -> list[str]:
    """Return the required options of a descriptor that are missing, mostly files."""
    needed = [f.name for f in fields(registry.component("descriptors", part)) if f.default is MISSING]
    return [f"--option {part}.{name}=..." for name in needed if name not in options.get(part, {})]


def describe_crops(how: Recipe, crops: Mapping[CropKind, Crops]) -> Rows:
    count = len(crops[how.crops[0]])
    rows = np.empty((count, how.dim), np.float32)
    for at in range(0, count, AT_ONCE):
        rows[at : at + AT_ONCE] = how.describe({kind: crops[kind][at : at + AT_ONCE] for kind in how.crops})
    return rows


def measure_cost(how: Recipe, crops: Mapping[CropKind, Crops]) -> float:
    faces = {
        kind: np.array(crops[kind][:FACES]) if kind in crops else draw_crops(FACES, CROP_SHAPES[kind])
        for kind in how.crops
    }
    how.describe({kind: some[:5] for kind, some in faces.items()})
    times = []
    for _ in range(ROUNDS):
        start = process_time()
        how.describe(faces)
        times.append(process_time() - start)
    return 1e3 * median(times) / FACES


def measure_accuracy(rows: Rows, protocol: Protocol, dim: int) -> tuple[float, float]:
    """Measure mAP and 1-call@10 in percent, with WPCA-cosine fitted to the protocol's training side."""
    fitted = Wpca(dim=dim, unit=True).fit(TrainingSet(rows[protocol.training], ()))
    ranked = rank_protocol(fitted.embed(rows), protocol)
    return 100 * float(average_precisions(ranked).mean()), 100 * float(n_call(ranked, 10).mean())


def measure(name: str, args: argparse.Namespace, options: Options, crops: Mapping[CropKind, Crops]) -> dict[str, Any]:
    parts = name.split("+")
    missing_options = [option for part in parts for option in list_missing_options(part, options)]
    if missing_options:
        return {"skipped": "without " + " ".join(missing_options)}
    how = Recipe(tuple(Spec(part, options.get(part, {})) for part in parts))
    unlearned = [part for part, descriptor in zip(parts, how.built, strict=True) if not descriptor.is_ready]
    if unlearned:
        return {"skipped": f"without what {' and '.join(unlearned)} learns from crops first, as an --option"}
    figures: dict[str, Any] = {"numbers": how.dim, "ms": measure_cost(how, crops)}
    if args.protocol and all(kind in crops for kind in how.crops):
        names, rows = args.names.read_text().split(), describe_crops(how, crops)
        for kind in KINDS:
            figures[kind] = measure_accuracy(rows, read(f"{kind}-{args.draw}", args.protocol, names), args.dim)
    return figures


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(list_crop_descriptors()))
    parser.add_argument("--option", action="append", default=[], help="NAME.KEY=JSON")
    for name in ("grey", "colour", "names", "protocol", "json"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--draw", type=int, default=0)
    return parser.parse_args()


def show(results: Mapping[str, dict[str, Any]], title: str) -> None:
    table = Table("", "numbers", "CPU ms a face", "closed: mAP / 1-call@10", "never seen", title=title)
    for name, r in results.items():
        if "skipped" in r:
            table.add_row(name, "skipped", r["skipped"])
            continue
        scores = [" / ".join(f"{s:.1f}" for s in r[kind]) if kind in r else "" for kind in KINDS]
        table.add_row(name, f"{r['numbers']:,}", f"{r['ms']:.2f}", *scores)
    Console(width=120).print(table)


def main() -> None:
    args = parse_arguments()
    options: dict[str, dict[str, Any]] = defaultdict(dict)
    for option in args.option:
        (path, _, value) = option.partition("=")
        name, _, key = path.partition(".")
        options[name][key] = json.loads(value)
    given: dict[CropKind, Path | None] = {"grey": args.grey, "colour": args.colour}
    crops = {kind: np.load(path, mmap_mode="r") for kind, path in given.items() if path}
    cv2.setNumThreads(1)
    with threadpool_limits(1):
        results = {name: measure(name, args, options, crops) for name in args.only.split(",")}
    show(results, f"descriptors, one thread; WPCA-cosine d = {args.dim}, draw {args.draw}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
