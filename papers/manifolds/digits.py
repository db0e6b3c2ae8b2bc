"""001, Table 2 and Figure 1: one layer 784 -> 20 on digits, evaluated by the nearest neighbour."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ml.embedders.base import Progress
from ml.layers.base import random_start
from papers.harness.run_context import RunContext
from papers.harness.table_types import Computation, ComputationOutput
from papers.manifolds.head_layers import HEADS, RATES, HeadTraining, describe_matrix, flatten_matrix
from papers.manifolds.head_training import (
    HeadTrainingData,
    Step,
    check_converged,
    make_step,
    measure_overheads,
    sweep_rates,
    train_head,
)
from papers.manifolds.mnist import BATCH, DIM, PIXELS, DigitSet, auto_encoder, read, split_digits, unlearned


def plan_training(head: str, rate: float, epochs: int, training_digits: int, seed: int = 0) -> HeadTraining:
    return HeadTraining(head, rate, epochs * (training_digits // BATCH), margin=1.0, batch=BATCH, seed=seed)


def make_training_data(digits: DigitSet, training_digits: Tensor) -> HeadTrainingData:
    return HeadTrainingData(
        digits.values[training_digits.numpy()], lambda rows, _: digits.pixels[training_digits[torch.from_numpy(rows)]]
    )


def make_choice_computation(context: RunContext, head: str, epochs: int) -> Computation:
    """Choose the rate. Record: `errors` by rate, on an inner split of split 0."""

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        digits = read(context.photos.data)
        training_digits, test_digits = split_digits(len(digits.values), 0, True)

        def error(rate: float) -> float:
            matrix, record = _learned(
                digits, training_digits, plan_training(head, rate, epochs, len(training_digits)), progress
            )
            check_converged(record)
            return float(digits.wrong(digits.pixels @ matrix, training_digits, test_digits).mean())

        return {"errors": sweep_rates(head, error)}, {}

    key = {"paper": "001", "what": "digits, inner", "head": head, "rates": list(RATES[head]), "epochs": epochs}
    return Computation(f"digits, the rate of {head}", key, 0.08 * epochs * len(RATES[head]), run)


def make_head_computation(context: RunContext, head: str, rate: float, epochs: int, seed: int) -> Computation:
    """Train a head. Record: axes, scale, loss.

    Arrays: `wrong` (Q,), `wrong_flat` (Q,) with all axes weighted equally, `asked` (Q,) the digits, `matrix` (784, 20)
    """

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        digits = read(context.photos.data)
        training_digits, test_digits = split_digits(len(digits.values), seed, False)
        matrix, record = _learned(
            digits, training_digits, plan_training(head, rate, epochs, len(training_digits), seed), progress
        )
        return record, _judged(digits, matrix, training_digits, test_digits)

    key = {"paper": "001", "what": "digits", "epochs": epochs, "plan": plan_training(head, rate, 0, 0, seed).key}
    return Computation(f"digits, {head}, split {seed}", key, 0.15 * epochs, run)


def make_baseline_computation(context: RunContext, name: str, epochs: int, seed: int) -> Computation:
    """Evaluate without labels: principal components, an auto-encoder, the pixels, or the start of the layers."""

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        digits = read(context.photos.data)
        training_digits, test_digits = split_digits(len(digits.values), seed, False)
        if name == "pixels":
            return {}, {
                "wrong": digits.wrong(digits.pixels, training_digits, test_digits),
                "asked": test_digits.numpy(),
            }
        matrix = unlearned(name, digits, training_digits, epochs, seed)
        return describe_matrix(matrix), _judged(digits, matrix, training_digits, test_digits)

    key = {"paper": "001", "what": "digits", "head": name, "epochs": epochs if name == "ae" else 0, "seed": seed}
    return Computation(f"digits, {name}, split {seed}", key, 0.1 * epochs if name == "ae" else 2.0, run)


def make_timing_computation(context: RunContext, rates: Mapping[str, float], rounds: int) -> Computation:
    """Time epochs. Record: `ratios`, the CPU time of each head and of "ae" over that of the plain layer, by round."""

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        digits = read(context.photos.data)
        training_digits = split_digits(len(digits.values), 0, False)[0]
        start, data = random_start(PIXELS, DIM), make_training_data(digits, training_digits)
        steps: dict[str, Step] = {
            name: make_step(
                data, nn.Identity(), HEADS[name].make(start), plan_training(name, rate, 1, len(training_digits))
            )
            for name, rate in rates.items()
        }
        steps["ae"] = auto_encoder(digits.pixels[training_digits], 0)[1]
        return {"ratios": measure_overheads(steps, "plain", len(training_digits) // BATCH, rounds)}, {}

    key = {"paper": "001", "what": "digits, epochs' times", "rates": dict(rates), "rounds": rounds}
    return Computation("digits, epochs' times", key, 0.7 * (rounds + 1), run)


def make_scatter_computation(context: RunContext, kept: Mapping[str, Computation], points: int) -> Computation:
    """Compute t-SNE of test digits. Arrays: (points, 2) by name, `values` (points,)."""

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        from sklearn.manifold import TSNE  # a second to load, for one picture

        digits, maps, values = read(context.photos.data), {}, np.empty(0, np.int64)
        for at, (name, computation) in enumerate(kept.items()):
            arrays = context.result(computation).arrays
            some = arrays["asked"][:points]
            z = digits.pixels[some] @ torch.from_numpy(arrays["matrix"])
            maps[name] = TSNE(2, init="pca", random_state=0).fit_transform(z.numpy()).astype(np.float32)
            values = digits.values[some]
            progress(at + 1, len(kept), {})
        return {}, {**maps, "values": values}

    key = {"paper": "001", "what": "t-SNE", "of": {n: dict(w.key) for n, w in kept.items()}, "points": points}
    return Computation("t-SNE of the digits", key, 0.006 * points * len(kept), run)


def _learned(
    digits: DigitSet, training_digits: Tensor, training: HeadTraining, progress: Progress
) -> tuple[Tensor, dict[str, Any]]:
    layer, record = train_head(
        make_training_data(digits, training_digits),
        nn.Identity(),
        random_start(PIXELS, DIM, training.seed),
        training,
        progress,
    )
    return layer.matrix.detach(), record


def _judged(digits: DigitSet, matrix: Tensor, training_digits: Tensor, test_digits: Tensor) -> dict[str, NDArray[Any]]:
    matrices = {"wrong": matrix, "wrong_flat": flatten_matrix(matrix)}
    judged = {name: digits.wrong(digits.pixels @ one, training_digits, test_digits) for name, one in matrices.items()}
    return {**judged, "asked": test_digits.numpy(), "matrix": matrix.numpy()}
