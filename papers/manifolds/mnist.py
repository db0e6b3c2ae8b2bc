"""MNIST's 10,000 test digits, their splits, and baselines without labels."""

import gzip
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import mse_loss, normalize

from ml.cnn_training.batches import draw_evenly
from ml.layers.base import random_start
from ml.metric_learning.principal_axes import fit_principal_axes
from papers.manifolds.head_training import Step

PIXELS, DIM, BATCH = 784, 20, 100
AE_RATE = 1e-3


@dataclass(frozen=True, eq=False)
class DigitSet:
    """Digits. pixels: (N, 784), each of unit length; values: (N,) the digits"""

    pixels: Tensor
    values: NDArray[np.int64]

    def wrong(self, z: Tensor, training_digits: Tensor, test_digits: Tensor) -> NDArray[np.bool_]:
        """Return (Q,) whether the nearest training digit is another. z: (N, d); the digits: indexes"""
        nearest = torch.cat(
            [torch.cdist(part, z[training_digits]).argmin(1) for part in torch.split(z[test_digits], 500)]
        )
        return np.asarray(self.values[training_digits[nearest]] != self.values[test_digits])


@lru_cache(maxsize=1)
def read(data: Path) -> DigitSet:
    """Read MNIST's t10k files in `data`/mnist, plain or gzipped. Raises typer.BadParameter if they are missing."""

    def unpacked(pattern: str, skip: int) -> NDArray[np.uint8]:
        file = next(iter(sorted((data / "mnist").glob(pattern))), None)
        if file is None:
            raise typer.BadParameter(f"there is no mnist/{pattern}", param_hint="--data")
        packed = file.read_bytes()
        return np.frombuffer(gzip.decompress(packed) if file.suffix == ".gz" else packed, np.uint8, offset=skip)

    pixels = torch.from_numpy(unpacked("t10k-images*", 16).reshape(-1, PIXELS).astype(np.float32))
    return DigitSet(normalize(pixels), unpacked("t10k-labels*", 8).astype(np.int64))


def split_digits(count: int, seed: int, inner: bool) -> tuple[Tensor, Tensor]:
    """Split the digits into training and test halves; inner: split the training half again."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(count))[: count // 2 if inner else count]
    return order[: len(order) // 2], order[len(order) // 2 :]


def unlearned(name: str, digits: DigitSet, training_digits: Tensor, epochs: int, seed: int) -> Tensor:
    if name == "start":
        return random_start(PIXELS, DIM, seed)
    if name == "pca":
        return fit_principal_axes(digits.pixels[training_digits], DIM)[0].T
    weights, step = auto_encoder(digits.pixels[training_digits], seed)
    for number in range(epochs * (len(training_digits) // BATCH)):
        step(number)
    return weights.detach().T.contiguous()


def auto_encoder(pixels: Tensor, seed: int) -> tuple[Tensor, Step]:
    """Make a linear auto-encoder 784 -> 20 -> 784: its encoder (20, 784), and a step by MSE and RMSProp."""
    torch.manual_seed(seed)
    encoder, decoder = nn.Linear(PIXELS, DIM), nn.Linear(DIM, PIXELS)
    net = nn.Sequential(encoder, decoder)
    descent = torch.optim.RMSprop(net.parameters(), AE_RATE)

    def step(number: int) -> float:
        seen = pixels[draw_evenly(len(pixels), BATCH, seed=seed, step=number)]
        loss = mse_loss(net(seen), seen)
        descent.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        descent.step()
        return loss.item()

    return encoder.weight, step
