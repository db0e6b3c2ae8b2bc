"""How fast LBP is, beside scikit-image's patterns with histograms of the same cells, on one thread.

    python -m benchmarks.lbp [--faces FILE.npy] [--json FILE]

FILE.npy: (N, 170, 100) uint8 crops; without it, drawn noise of the smoothness of faces.
Both are timed in one run, one after the other in every round; the figure is the median of the rounds, in CPU time,
so that other programs on the machine count little.
"""

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

import cv2
import numpy as np
from rich.console import Console
from rich.table import Table
from skimage.feature import local_binary_pattern
from threadpoolctl import threadpool_limits

from ml.descriptors.lbp import Lbp
from ml.types import Crops, Rows

ROUNDS = 9
CELL = 10
BINS = 59


def drawn(n: int, shape: tuple[int, ...] = (170, 100)) -> Crops:
    rng = np.random.default_rng(0)
    smooth = [cv2.GaussianBlur(rng.normal(size=shape), (0, 0), 2) for _ in range(n)]
    return np.stack([cv2.normalize(s, None, 0, 255, cv2.NORM_MINMAX) for s in smooth]).astype(np.uint8)


def ours(crops: Crops) -> Rows:
    return Lbp(cell=CELL).describe(crops)


def theirs(crops: Crops) -> Rows:
    """Uniform patterns and one histogram a cell, in one count for all cells; hard cells, so with less work to do."""
    rows, columns = np.arange(170) // CELL, np.arange(100) // CELL
    first = (rows[:, None] * 10 + columns) * BINS
    found = []
    for crop in crops:
        patterns = local_binary_pattern(crop, 8, 1, method="nri_uniform").astype(np.int64)
        counts = np.bincount((first + patterns).ravel(), minlength=170 * BINS).reshape(170, BINS)
        found.append(np.sqrt(counts / CELL**2).ravel())
    return np.array(found, np.float32)


def milliseconds(run: Callable[[Crops], Rows], crops: Crops) -> float:
    start = process_time()
    run(crops)
    return (process_time() - start) * 1000 / len(crops)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    crops = np.load(options.faces, mmap_mode="r")[:200].copy() if options.faces else drawn(200)
    cv2.setNumThreads(1)
    with threadpool_limits(1):
        ours(crops[:5]), theirs(crops[:5])
        rounds = [(milliseconds(ours, crops), milliseconds(theirs, crops)) for _ in range(ROUNDS)]
    figures = {
        "faces": len(crops),
        "data": options.faces.name if options.faces else "drawn",
        "ours_ms": median(mine for mine, _ in rounds),
        "scikit_image_ms": median(other for _, other in rounds),
        "times_as_fast": median(other / mine for mine, other in rounds),
        "machine": platform.processor() or platform.machine(),
    }
    table = Table(
        "", "CPU ms a face", title=f"LBP, {len(crops)} faces ({figures['data']}), one thread, {ROUNDS} rounds"
    )
    table.add_row("ours: bilinear cells, 9,860 numbers", f"{figures['ours_ms']:.3f}")
    table.add_row("scikit-image: hard cells, 10,030 numbers", f"{figures['scikit_image_ms']:.3f}")
    table.add_row("times as fast", f"{figures['times_as_fast']:.1f}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
