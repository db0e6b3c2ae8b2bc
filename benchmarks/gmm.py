"""Time the fit of a Gaussian mixture on one thread: ours and scikit-learn's.

    python -m benchmarks.gmm [--rows FILE.npy] [--json FILE]

FILE.npy: (N, d) float32; by default, 10,000 x 32 numbers from overlapping and from separate Gaussians. k = 8, diagonal
covariances. Both stop when the mean log-likelihood rises by less than 0.0001, after at most 100 rounds. Times are CPU
times, on which other programs have little effect; the likelihoods show that neither is faster by fitting worse.
"""

import argparse
import json
import platform
from pathlib import Path
from statistics import mean, median
from time import process_time
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from ml.clustering.gaussian_mixture import fit_mixture

SEEDS = 9
K = 8
TOLERANCE = 1e-4
Floats = NDArray[np.float32]


def draw_rows(separation: float, n: int = 10_000, d: int = 32) -> Floats:
    draw = np.random.default_rng(0)
    centres, widths = separation * draw.normal(size=(K, d)), draw.uniform(0.5, 1.5, (K, d))
    which = draw.integers(0, K, n)
    return (centres[which] + widths[which] * draw.normal(size=(n, d))).astype(np.float32)


def fit_ours(rows: Floats, seed: int) -> float:
    """Fit our mixture, and return the mean log-likelihood."""
    z = torch.from_numpy(rows)
    return float(fit_mixture(z, K, seed, rest=TOLERANCE).log_joint(z).double().logsumexp(1).mean())


def fit_scikit_learn(rows: Floats, seed: int) -> float:
    with catch_warnings():
        simplefilter("ignore", ConvergenceWarning)
        mixture = GaussianMixture(K, covariance_type="diag", tol=TOLERANCE, max_iter=100, random_state=seed).fit(rows)
    return float(mixture.score(rows))


def time_fits(rows: Floats, seed: int) -> dict[str, float]:
    start = process_time()
    fitted = fit_ours(rows, seed)
    between = process_time()
    other = fit_scikit_learn(rows, seed)
    return {
        "ours_s": between - start,
        "scikit_learn_s": process_time() - between,
        "ours": fitted,
        "scikit_learn": other,
    }


def measure(rows: Floats) -> dict[str, Any]:
    time_fits(rows[:1000], 0)
    seeds = [time_fits(rows, seed) for seed in range(SEEDS)]
    figures: dict[str, Any] = {name: median(s[name] for s in seeds) for name in ("ours_s", "scikit_learn_s")}
    figures |= {name: mean(s[name] for s in seeds) for name in ("ours", "scikit_learn")}
    return figures | {"rows": list(rows.shape), "k": K, "machine": platform.processor() or platform.machine()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows_by_name = {"drawn, overlapping": draw_rows(0.2), "drawn, apart": draw_rows(0.6)}
    if options.rows:
        rows_by_name = {options.rows.name: np.load(options.rows).astype(np.float32)}
    torch.set_num_threads(1)
    with threadpool_limits(1):
        figures = {name: measure(rows) for name, rows in rows_by_name.items()}
    table = Table("", "", "CPU s (median)", "log likelihood (mean)", title=f"GMM, k = {K}, {SEEDS} seeds, one thread")
    for name, values in figures.items():
        table.add_row(name, "ours", f"{values['ours_s']:.3f}", f"{values['ours']:.3f}")
        table.add_row("", "scikit-learn", f"{values['scikit_learn_s']:.3f}", f"{values['scikit_learn']:.3f}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
