"""000, Figures 4 and 5: learning curves, and the weight of a branch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ml.metric_learning.cosim.branches import cross_entropy
from papers.harness.table_types import Computation, Figure, Plot, Result, Row, Table

STEPS_PER_EPOCH = 4800 / 128
"""Minibatches per epoch of the eight folds' pairs."""
CONVERGED_AUC_GAP = 0.005
"""A network has converged when its AUC is within this of its best."""
POINTS = ((0.5, 0.5), (0.1, 0.1), (0.9, 0.9), (0.01, 0.1), (0.1, 0.01), (0.9, 0.99), (0.99, 0.9), (0.01, 0.99))


def figure_5(header: str, runs: Mapping[str, tuple[Computation, Result]], panels: Sequence[str]) -> Table:
    """Figure 5. runs: by `<system>, <panel>`, each scored on the judging pairs of the first fold"""
    rows, there = [], {}
    for name, (computation, result) in runs.items():
        steps, auc = result.arrays["curve"].T
        there[name] = float(steps[np.argmax(auc >= auc.max() - CONVERGED_AUC_GAP)] / STEPS_PER_EPOCH)
        values = {
            "best AUC": 100 * auc.max(),
            "at epoch": steps[auc.argmax()] / STEPS_PER_EPOCH,
            "there from epoch": there[name],
        }
        figures = {
            column: Figure(float(value)) for column, value in {**values, "AUC at the end": 100 * auc[-1]}.items()
        }
        rows.append(Row(name, figures, computations=[computation]))
    curves = {panel: {n: r.arrays["curve"] for n, (_, r) in runs.items() if n.endswith(panel)} for panel in panels}
    plot = Plot("cosim-figure-5", "AUC of pairs that nobody learned from, over epochs", _curves(curves), 1, len(panels))
    columns = ["best AUC", "at epoch", "there from epoch", "AUC at the end"]
    notes = [_later(there, panel) for panel in panels]
    return Table("figure-5", "Figure 5: learning curves", header, columns, rows, [plot], notes)


def _later(there: Mapping[str, float], panel: str) -> str:
    """Test the paper's claim that the average form converges late."""
    mass, average = (there[f"{name}, {panel}"] for name in ("CoSiM-m", "CoSiM-a"))
    seen = "as the paper says" if average > 1.25 * mass else "which is not late, as the paper has it"
    return (
        f"{panel}: CoSiM-m is within {CONVERGED_AUC_GAP} of its best AUC from epoch {mass:.1f}, CoSiM-a from "
        f"{average:.1f}: {seen}."
    )


def _curves(panels: Mapping[str, Mapping[str, NDArray[np.float64]]]) -> Any:
    def draw(axes: Any) -> None:
        for ax, (panel, curves) in zip(np.atleast_1d(axes).ravel(), panels.items(), strict=True):
            for name, curve in curves.items():
                ax.plot(curve[:, 0] / STEPS_PER_EPOCH, curve[:, 1], label=name.removesuffix(f", {panel}"))
            ax.set_title(panel)
            ax.set_xlabel("epoch")
            ax.set_ylabel("AUC of the judges' pairs")
            ax.legend(fontsize=7, loc="lower right")

    return draw


def eta(f1: NDArray[np.float64], f2: NDArray[np.float64]) -> NDArray[np.float64]:
    """eta / a of the first of two branches (equation 14), read off the gradient that training takes: what its logit
    gets, over what the one logit of the whole would get, a_i = 1/2. Both (...) in (0, 1)."""
    f = torch.from_numpy(np.stack([f1, f2]).reshape(2, 1, -1))
    shares = torch.full((2, 1), 0.5, dtype=torch.float64)
    sign, weight = torch.ones_like(f[0]), torch.ones_like(f[0])
    _, by_z = cross_entropy(torch.logit(f), sign, weight, shares)
    _, whole = cross_entropy(torch.logit(f.mean(0, keepdim=True)), sign, weight, torch.ones(1, 1, dtype=torch.float64))
    weights: NDArray[np.float64] = (by_z[0] / (0.5 * whole[0])).numpy().reshape(f1.shape)
    return weights


def figure_4() -> Table:
    rows = [_point(*at) for at in POINTS]
    plot = Plot("cosim-figure-4", "eta / a of the first branch over what both branches say", _surface)
    header = "Equation 14 with a = 1/2, read off the gradient of the code that trains; no data."
    notes = [
        "The paper plots eta / a and calls it eta: eta is a where both agree, and below 1 everywhere at a = 1/2.",
        'The text gives the larger step to the surer branch ("f1 < f2 and both close to zero", "f1 > f2 and both close'
        ' to one"); the equation gives it to the other.',
    ]
    return Table("figure-4", "Figure 4: the weight of a branch", header, ["eta / a"], rows, [plot], notes)


def _point(f1: float, f2: float) -> Row:
    weight = float(eta(np.array([f1]), np.array([f2]))[0])
    figures = {"eta / a": Figure(weight)}
    surer = (f1 < f2 and f2 < 0.5) or (f1 > f2 and f2 > 0.5)
    name = f"f1 = {f1}, f2 = {f2}"
    if f1 == f2:
        return Row(name, figures, {"eta / a": 1.0}, tolerance=1e-9)
    if surer:
        wrong = f"the text says above 1, its equation {weight:.2f}: an error of the paper"
        return Row(name, figures, {}, "not possible here" if weight < 1 else "ours", wrong if weight < 1 else "")
    return Row(name, figures)


def _surface(axes: Any) -> None:
    at = np.linspace(0.005, 0.995, 199)
    first, second = np.meshgrid(at, at)
    contours = axes.contourf(first, second, eta(first, second), np.linspace(0, 2, 21), cmap="viridis")
    axes.set_xlabel("f1")
    axes.set_ylabel("f2")
    axes.set_title("eta / a of branch 1")
    axes.figure.colorbar(contours, ax=axes)
