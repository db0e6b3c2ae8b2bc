"""Measure the accuracy and time of a learned metric on LFW: closed set and people never seen, averaged over draws.

    python -m benchmarks.embedders --rows LBP.npy --names NAMES.txt --protocol DIR --method clml [--option k=16 ...]
                                   [--draws 3] [--only queries]

LBP.npy: (N, D) float32 in the order of the names, one `Name/Name_0001.jpg` a line; DIR has `queries-K.txt` and
`disjoint-K.txt`. Prints one JSON line per protocol: accuracy in percent, seconds of a fit, and milliseconds to embed a
single query (median of 50) and a face in a batch of 1,000.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from ml.embedders.base import Embedder, TaskData, TrainingSet
from ml.evaluation.protocols import Protocol, read
from ml.evaluation.report import rank_protocol
from ml.evaluation.retrieval import average_precisions, n_call
from ml.registry import build
from ml.types import Rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--names", type=Path, required=True)
    parser.add_argument("--protocol", type=Path, required=True)
    parser.add_argument("--method", default="ldml")
    parser.add_argument("--option", action="append", default=[], help="name=JSON")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--only", choices=["queries", "disjoint"])
    args = parser.parse_args()
    options = {n: json.loads(v) for n, _, v in (o.partition("=") for o in args.option)}
    rows, names = np.load(args.rows), args.names.read_text().split()
    for kind in [args.only] if args.only else ["queries", "disjoint"]:
        draws = []
        for draw in range(args.draws):
            embedder = build("embedders", args.method, **options)
            draws.append(measure(embedder, rows, read(f"{kind}-{draw}", args.protocol, names)))
        means = {name: round(float(np.mean([d[name] for d in draws])), 3) for name in draws[0]}
        print(json.dumps({"protocol": kind, "draws": args.draws, "method": args.method, **options, **means}))


def measure(embedder: Embedder, rows: Rows, protocol: Protocol) -> dict[str, Any]:
    """Fit to the protocol's training side, and rank its gallery for each of its queries."""
    people = protocol.people[protocol.training]
    task = TaskData("identity", np.arange(len(people)), people.astype(np.float64), people)
    data = TrainingSet(rows[protocol.training], (task,))
    start = time.perf_counter()
    embedder.fit(data)
    seconds = time.perf_counter() - start
    ranked = rank_protocol(embedder.embed(rows), protocol)
    return {
        "mAP": 100 * average_precisions(ranked).mean(),
        "1-call@10": 100 * n_call(ranked, 10).mean(),
        "1-call@20": 100 * n_call(ranked, 20).mean(),
        "seconds": seconds,
        "one_ms": 1e3 * float(np.median([time_embed(embedder, rows[i : i + 1]) for i in range(50)])),
        "batch_ms": time_embed(embedder, rows[:1000]),
    }


def time_embed(embedder: Embedder, rows: Rows) -> float:
    start = time.perf_counter()
    embedder.embed(rows)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
