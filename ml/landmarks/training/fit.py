"""How the landmark model is fitted: patches with known points, jittered, through a small CNN."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ml.errors import Unavailable
from ml.geometry import Matrix, moved, warp
from ml.landmarks.base import MIRRORED
from ml.landmarks.common.patch_frames import EYES, SIDE, TEMPLATE, WIDE, look, normal


@dataclass(frozen=True)
class LandmarkRecipe:
    """epochs, batch: of the descent; rate: its highest; seed.

    shift: SD in eye distances, turn: SD in degrees, zoom: SD of the logarithm, of a rough first guess;
    `fine` of the patches are jittered by a third of that, as after a first pass
    """

    epochs: int = 25
    batch: int = 64
    rate: float = 2e-3
    shift: float = 0.15
    turn: float = 12.0
    zoom: float = 0.12
    fine: float = 0.5
    seed: int = 0


def net() -> nn.Sequential:
    """(n, 1, 64, 64) grey, zero mean and unit SD each -> (n, 10): x, y of five points, in eye distances from the
    average face."""

    def block(wide: int, to: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(wide, to, 3, stride, 1, bias=False), nn.BatchNorm2d(to), nn.ReLU()]

    steps = [(1, 16, 2), (16, 32, 2), (32, 48, 1), (48, 64, 2), (64, 96, 1), (96, 128, 2)]
    layers = [layer for step in steps for layer in block(*step)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.ReLU(), nn.Linear(128, 10))


def jitters(n: int, recipe: LandmarkRecipe, rng: np.random.Generator) -> list[Matrix]:
    """Wide patch -> patch, n times, as a guess that is off would cut it. Each matrix is (2, 3)."""
    size = np.where(rng.random(n) < recipe.fine, 1 / 3, 1.0)
    turns, zooms = rng.normal(0, recipe.turn, n) * size, np.exp(rng.normal(0, recipe.zoom, n) * size)
    shifts = rng.normal(0, recipe.shift, (n, 2)) * size[:, None]
    return [look(turn, zoom, (x, y)) for turn, zoom, (x, y) in zip(turns, zooms, shifts, strict=True)]


def spoil(patch: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.float32]:
    """Blur, noise, another gamma, something in front of the face: what photos do.

    patch: (SIDE, SIDE), 0 to 255. Returns (SIDE, SIDE) in 0..1.
    """
    kind = rng.random(4)
    grey = patch.astype(np.float32) / 255
    if kind[0] < 0.3:
        grey = np.asarray(cv2.GaussianBlur(grey, (0, 0), rng.uniform(0.4, 1.6)), np.float32)
    if kind[1] < 0.5:
        grey = grey ** np.float32(np.exp(rng.normal(0, 0.4)))
    if kind[2] < 0.3:
        across = np.linspace(-1, 1, SIDE, dtype=np.float32) * np.float32(rng.normal(0, 0.3))
        grey = grey * (1 + (across[None] if kind[2] < 0.2 else across[:, None]))
    if kind[3] < 0.25:
        x, y, w, h = (*rng.integers(0, SIDE - 8, 2), *rng.integers(6, 22, 2))
        grey[y : y + h, x : x + w] = rng.random()
    return grey + rng.standard_normal(grey.shape, np.float32) * np.float32(abs(rng.normal(0, 0.03)))


def batches(
    wide: NDArray[np.uint8], points: NDArray[np.float32], recipe: LandmarkRecipe, rng: np.random.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """One pass over (n, WIDE, WIDE) patches and their (n, 5, 2) points, jittered, half of them mirrored."""
    order = rng.permutation(len(wide))
    for chosen in np.split(order, range(recipe.batch, len(order), recipe.batch)):
        seen, wanted = np.empty((len(chosen), SIDE, SIDE), np.float32), np.empty((len(chosen), 5, 2), np.float32)
        for at, (i, frame) in enumerate(zip(chosen, jitters(len(chosen), recipe, rng), strict=True)):
            patch, true = wide[i], points[i]
            if rng.random() < 0.5:
                patch, true = patch[:, ::-1], np.column_stack([WIDE - 1 - true[:, 0], true[:, 1]])[MIRRORED]
            seen[at], wanted[at] = spoil(warp(patch, frame, (SIDE, SIDE)), rng), (moved(frame, true) - TEMPLATE) / EYES
        yield torch.from_numpy(normal(seen)), torch.from_numpy(wanted.reshape(-1, 10))


def fit(
    wide: NDArray[np.uint8],
    points: NDArray[np.float32],
    recipe: LandmarkRecipe,
    tell: Callable[[int, float], None],
) -> nn.Sequential:
    """The fitted net, in evaluation mode. `tell(epoch, mean loss)` after each pass."""
    torch.manual_seed(recipe.seed)
    rng = np.random.default_rng(recipe.seed)
    model: nn.Sequential = net().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    steps = recipe.epochs * -(-len(wide) // recipe.batch)
    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.rate, weight_decay=0.02)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.rate, total_steps=steps, pct_start=0.15)
    loss_of = nn.SmoothL1Loss(beta=0.05)
    for epoch in range(recipe.epochs):
        losses = []
        for seen, wanted in batches(wide, points, recipe, rng):
            loss = loss_of(model(seen), wanted)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            rate.step()
            losses.append(loss.item())
        tell(epoch, float(np.mean(losses)))
    model.train(False)
    return model


def accuracy(
    model: nn.Sequential,
    wide: NDArray[np.uint8],
    points: NDArray[np.float32],
    recipe: LandmarkRecipe,
    within: float = 0.15,
) -> float:
    """The part of the patches, jittered as the recipe says, of which one look finds all points so near.

    wide: (n, WIDE, WIDE); points: (n, 5, 2).
    """
    predicted = []
    for seen, wanted in batches(wide, points, recipe, np.random.default_rng(recipe.seed)):
        with torch.no_grad():
            off = (model(seen) - wanted).reshape(-1, 5, 2).norm(dim=2)
        predicted.append((off.max(1).values < within).numpy())
    return float(np.concatenate(predicted).mean())


def check_export() -> None:
    """Raises Unavailable where the file could not be written in the end."""
    if find_spec("onnx") is None:
        raise Unavailable("writing the landmark model needs the package `onnx`: pip install onnx")


def export(model: nn.Sequential, out: Path) -> None:
    """An ONNX file: input `patches` (n, 1, 64, 64), output `offsets` (n, 10)."""
    with warnings.catch_warnings():
        # the newer exporter needs onnxscript and writes the same graph
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            model.to(memory_format=torch.contiguous_format),  # type: ignore[call-overload]
            (torch.zeros(1, 1, SIDE, SIDE),),
            str(out),
            dynamo=False,
            input_names=["patches"],
            output_names=["offsets"],
            dynamic_axes={"patches": {0: "n"}, "offsets": {0: "n"}},
        )
