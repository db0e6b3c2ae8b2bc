"""Time LBP on one thread: ours, VLFeat's C, and scikit-image's patterns with histograms of the same cells.

    python -m benchmarks.lbp [--faces FILE.npy] [--json FILE]

FILE.npy: (N, 170, 100) uint8 crops; by default, smooth random noise. All are timed in one run, in turn in every round;
the result is the median CPU time, on which other programs have little effect. VLFeat's library (Debian's libvlfeat1)
must give the same numbers as ours; if it is not installed, its row is skipped.
"""

import argparse
import ctypes
import json
import platform
from collections.abc import Callable
from ctypes.util import find_library
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
SHOWN = {
    "ours": "ours: bilinear cells, 9,860 numbers",
    "vlfeat": "VLFeat's C: the same numbers",
    "scikit_image": "scikit-image: hard cells, 10,030 numbers",
}


def draw_crops(n: int, shape: tuple[int, ...] = (170, 100)) -> Crops:
    rng = np.random.default_rng(0)
    smooth = [cv2.GaussianBlur(rng.normal(size=shape), (0, 0), 2) for _ in range(n)]
    return np.stack([cv2.normalize(s, None, 0, 255, cv2.NORM_MINMAX) for s in smooth]).astype(np.uint8)


def describe_ours(crops: Crops) -> Rows:
    return Lbp(cell=CELL).describe(crops)


def describe_scikit_image(crops: Crops) -> Rows:
    """Count uniform patterns in hard cells, for all cells at once; hard cells are less work."""
    rows, columns = np.arange(170) // CELL, np.arange(100) // CELL
    first = (rows[:, None] * 10 + columns) * BINS
    results = []
    for crop in crops:
        patterns = local_binary_pattern(crop, 8, 1, method="nri_uniform").astype(np.int64)
        counts = np.bincount((first + patterns).ravel(), minlength=170 * BINS).reshape(170, BINS)
        results.append(np.sqrt(counts / CELL**2).ravel())
    return np.array(results, np.float32)


class Vlfeat:
    """`vl_lbp` of libvl, called through ctypes. Raises OSError if it is not installed."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(find_library("vl") or "libvl.so.1")
        self.lib.vl_lbp_new.restype = ctypes.c_void_p
        self.lib.vl_lbp_process.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_size_t] * 3
        self.lib.vl_lbp_delete.argtypes = [ctypes.c_void_p]

    def __call__(self, crops: Crops) -> Rows:
        """Describe crops. `vl_lbp` takes single precision, and adds to its output array."""
        pictures, rows = crops.astype(np.float32), np.zeros((len(crops), 58 * 170), np.float32)
        made = self.lib.vl_lbp_new(0, 0)
        for picture, row in zip(pictures, rows, strict=True):
            self.lib.vl_lbp_process(made, row.ctypes.data, picture.ctypes.data, 100, 170, CELL)
        self.lib.vl_lbp_delete(made)
        return rows


def load_vlfeat(crops: Crops) -> Vlfeat | None:
    """Return VLFeat, after checking that it gives the same numbers as ours; None if it is not installed."""
    try:
        library = Vlfeat()
    except OSError:
        return None
    assert np.abs(library(crops[:5]) - describe_ours(crops[:5])).max() < 1e-5
    return library


def time_describe(run: Callable[[Crops], Rows], crops: Crops) -> float:
    start = process_time()
    run(crops)
    return (process_time() - start) * 1000 / len(crops)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    crops = np.load(options.faces, mmap_mode="r")[:200].copy() if options.faces else draw_crops(200)
    cv2.setNumThreads(1)
    runs: dict[str, Callable[[Crops], Rows]] = {"ours": describe_ours, "scikit_image": describe_scikit_image}
    native = load_vlfeat(crops)
    if native:
        runs["vlfeat"] = native
    with threadpool_limits(1):
        describe_ours(crops[:5]), describe_scikit_image(crops[:5])
        rounds = [{name: time_describe(run, crops) for name, run in runs.items()} for _ in range(ROUNDS)]
    ms = {name: median(one[name] for one in rounds) for name in runs}
    over = {name: median(one[name] / one["ours"] for one in rounds) for name in runs}
    data = options.faces.name if options.faces else "drawn"
    table = Table("", "CPU ms a face", "times ours", title=f"LBP, {len(crops)} faces ({data}), one thread")
    for name, what in SHOWN.items():
        cells = (f"{ms[name]:.3f}", f"{over[name]:.2f}") if name in ms else ("skipped: no libvl", "")
        table.add_row(what, *cells)
    Console().print(table)
    if options.json:
        machine = platform.processor() or platform.machine()
        figures = {"faces": len(crops), "data": data, "ms": ms, "over_ours": over, "machine": machine}
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
