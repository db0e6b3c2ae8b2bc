"""Time Fisher vectors of dense root-SIFT: ours, and three combinations of other libraries.

    python -m benchmarks.fisher [--faces FILE.npy] [--json FILE]

FILE.npy: (N, 170, 100) uint8 crops; by default, smooth random noise. One face at a time, stride 1, one thread, with one
vocabulary learned from the same crops. All are timed in one run, in turn in every round; the result is the median CPU
time, on which other programs have little effect. References whose libraries are missing are listed and left out. All
project patches by the same matrix product. `cosine` is the similarity of their rows to ours; kornia has different
gradients and another window.
"""

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from skimage.feature import fisher_vector
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from benchmarks import vlfeat
from benchmarks.lbp import draw_crops
from ml.clustering.gaussian_mixture import posteriors
from ml.descriptors.common.fisher_encoder import Encoder
from ml.descriptors.common.vocabulary import Vocabulary
from ml.descriptors.fisher import Fisher
from ml.types import Crops

ROUNDS = 9
VOCABULARY_CROPS = 40
Floats = vlfeat.Floats
Run = Callable[[Crops], Floats]


def time_run(run: Callable[[], object]) -> float:
    start = process_time()
    run()
    return (process_time() - start) * 1000


def project(rooted: Floats, words: Vocabulary, positions: Floats) -> Floats:
    """Project (T, 128) root-SIFT, and append positions: (T, 66)."""
    return np.concatenate([(rooted - words.mean) @ words.axes.T, positions], 1)


def load_scikit_image(words: Vocabulary) -> Callable[[Floats], Floats]:
    mixture = GaussianMixture(len(words.means), covariance_type="diag")
    mixture.weights_, mixture.means_ = np.exp(words.log_weights), words.means
    mixture.covariances_, mixture.precisions_cholesky_ = words.variances, words.variances**-0.5

    def run(seen: Floats) -> Floats:
        vector = fisher_vector(seen, mixture, improved=True)[len(words.means) :]
        vector[vector.size // 2 :] *= -1
        return vector / np.linalg.norm(vector)

    return run


def load_vlfeat_sift(vl: Any) -> Run:
    """Return VLFeat's root-SIFT in our order of numbers."""

    def run(crop: Crops) -> Floats:
        rows = np.sqrt(vlfeat.dense_sift(vl, crop).reshape(-1, 16, 8).transpose(0, 2, 1).reshape(-1, 128))
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)

    return run


def load_kornia_sift() -> Run | None:
    try:
        from kornia.feature import DenseSIFTDescriptor
    except ImportError:
        return None
    sift = DenseSIFTDescriptor(spatial_bin_size=6, padding=0)

    def run(crop: Crops) -> Floats:
        with torch.inference_mode():
            descriptors = sift(torch.from_numpy(crop.astype(np.float32))[None, None] / 255)
        return descriptors[0, :, 3:150, 3:80].reshape(128, -1).T.numpy()

    return run


def list_references(words: Vocabulary, positions: Floats) -> tuple[dict[str, Run], list[str]]:
    """Return the available references, and the missing ones."""
    theirs, kornia, vl = load_scikit_image(words), load_kornia_sift(), vlfeat.library()
    runs: dict[str, Run] = {}
    missing = []
    if kornia:
        runs["kornia DenseSIFT + scikit-image"] = lambda crop: theirs(project(kornia(crop), words, positions))
    else:
        missing.append("kornia (pip install kornia)")
    if vl:
        sift, weights = load_vlfeat_sift(vl), np.exp(words.log_weights)
        runs["vl_dsift + scikit-image"] = lambda crop: theirs(project(sift(crop), words, positions))
        runs["vl_dsift + vl_fisher_encode (all C)"] = lambda crop: vlfeat.fisher_vector(
            vl, words.means, words.variances, weights, project(sift(crop), words, positions)
        )
    else:
        missing.append("VLFeat (Debian: libvlfeat1)")
    return runs, missing


def build_stages(encoder: Encoder, crop: Crops) -> dict[str, Callable[[], object]]:
    """Return the stages of our computation, each on the output of the previous one."""
    given = torch.from_numpy(crop[None])
    both = encoder.lifted(given)
    joint = encoder.mixture.of_lifted(both[0])
    shares = posteriors(joint)[0]
    return {
        "gradients in 8 orientations": lambda: encoder.sift._oriented(given),
        "with cells, 11,319 patches of 128": lambda: encoder.sift.patches(given),
        "with the projection to 66 and squares": lambda: encoder.lifted(given),
        "log densities (product)": lambda: encoder.mixture.of_lifted(both[0]),
        "posteriors": lambda: posteriors(joint),
        "sums over patches (product)": lambda: shares.mT @ both[0],
    }


def time_runs(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median time of each, measured in turn."""
    for run in runs.values():
        run()
    rounds = [{name: time_run(run) for name, run in runs.items()} for _ in range(ROUNDS)]
    return {name: median(r[name] for r in rounds) for name in runs}


def measure(crops: Crops) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        learning = process_time()
        fisher = Fisher(**Fisher.learn(crops[:VOCABULARY_CROPS], Path(folder)), device="cpu")
        learning = process_time() - learning
        words = Vocabulary.read(Path(fisher.vocabulary))
    encoder = Encoder(words, 1, "cpu")
    theirs, missing = list_references(words, encoder.centres.numpy())
    crop = crops[-1]
    ours = fisher.describe(crop[None])[0]
    runs: dict[str, Callable[[], object]] = {"ours": lambda: fisher.describe(crop[None])}
    runs |= {name: lambda run=run: run(crop) for name, run in theirs.items()}
    return {
        "milliseconds": time_runs(runs),
        "cosine": {name: float(run(crop) @ ours) for name, run in theirs.items()},
        "stages": time_runs(build_stages(encoder, crop)),
        "learned_from": VOCABULARY_CROPS,
        "learned_in_seconds": learning,
        "missing": missing,
        "machine": platform.processor() or platform.machine(),
    }


def show(figures: dict[str, Any]) -> None:
    times, ours = figures["milliseconds"], figures["milliseconds"]["ours"]
    table = Table("", "CPU ms a face", "times ours", "cosine", title=f"Fisher vectors ({figures['data']}), one thread")
    for name, value in times.items():
        table.add_row(name, f"{value:.1f}", f"{value / ours:.1f}", f"{figures['cosine'].get(name, 1):.4f}")
    for name in figures["missing"]:
        table.add_row(f"left out: {name}")
    parts = Table("stage", "CPU ms")
    for name, value in figures["stages"].items():
        parts.add_row(name, f"{value:.1f}")
    Console().print(table, parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    crops = (
        np.load(options.faces, mmap_mode="r")[: VOCABULARY_CROPS + 1].copy()
        if options.faces
        else draw_crops(VOCABULARY_CROPS + 1)
    )
    torch.set_num_threads(1)
    with threadpool_limits(1):
        figures = {"data": options.faces.name if options.faces else "drawn"} | measure(crops)
    show(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
