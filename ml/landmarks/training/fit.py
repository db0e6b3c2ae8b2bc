"""Fit the landmark network to jittered patches with known landmarks."""

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
from ml.landmarks.base import MIRRORED_ORDER
from ml.landmarks.common.patch_frames import (
    EYE_DISTANCE_PIXELS,
    PATCH_PIXELS,
    TEMPLATE,
    WIDE_PATCH_PIXELS,
    normalise_patches,
    view_transform,
)


@dataclass(frozen=True)
class LandmarkRecipe:
    """The settings of a landmark training.

    rate: highest learning rate
    shift, turn, zoom: SD of the jitter, in eye distances, in degrees and of the logarithm, as of a first guess
    fine: share of the patches that are jittered by a third of that, as after a first pass
    """

    epochs: int = 25
    batch: int = 64
    rate: float = 2e-3
    shift: float = 0.15
    turn: float = 12.0
    zoom: float = 0.12
    fine: float = 0.5
    seed: int = 0


def build_network() -> nn.Sequential:
    """Build the network: (n, 1, 64, 64) normalised patches -> (n, 10) x, y offsets from the average face.

    The offsets of the five landmarks are in eye distances.
    """

    def block(wide: int, to: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(wide, to, 3, stride, 1, bias=False), nn.BatchNorm2d(to), nn.ReLU()]

    steps = [(1, 16, 2), (16, 32, 2), (32, 48, 1), (48, 64, 2), (64, 96, 1), (96, 128, 2)]
    layers = [layer for step in steps for layer in block(*step)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.ReLU(), nn.Linear(128, 10))


def draw_jitters(n: int, recipe: LandmarkRecipe, rng: np.random.Generator) -> list[Matrix]:
    """Draw n wide patch -> patch transforms (2, 3), as inaccurate guesses would cut them."""
    size = np.where(rng.random(n) < recipe.fine, 1 / 3, 1.0)
    turns, zooms = rng.normal(0, recipe.turn, n) * size, np.exp(rng.normal(0, recipe.zoom, n) * size)
    shifts = rng.normal(0, recipe.shift, (n, 2)) * size[:, None]
    return [view_transform(turn, zoom, (x, y)) for turn, zoom, (x, y) in zip(turns, zooms, shifts, strict=True)]


def degrade(patch: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.float32]:
    """Add what real photos have: blur, noise, another gamma, uneven light, an object in front of the face.

    patch: (S, S) in 0..255. Returns (S, S) in about 0..1.
    """
    kind = rng.random(4)
    grey = patch.astype(np.float32) / 255
    if kind[0] < 0.3:
        grey = np.asarray(cv2.GaussianBlur(grey, (0, 0), rng.uniform(0.4, 1.6)), np.float32)
    if kind[1] < 0.5:
        grey = grey ** np.float32(np.exp(rng.normal(0, 0.4)))
    if kind[2] < 0.3:
        across = np.linspace(-1, 1, PATCH_PIXELS, dtype=np.float32) * np.float32(rng.normal(0, 0.3))
        grey = grey * (1 + (across[None] if kind[2] < 0.2 else across[:, None]))
    if kind[3] < 0.25:
        x, y, w, h = (*rng.integers(0, PATCH_PIXELS - 8, 2), *rng.integers(6, 22, 2))
        grey[y : y + h, x : x + w] = rng.random()
    return grey + rng.standard_normal(grey.shape, np.float32) * np.float32(abs(rng.normal(0, 0.03)))


def iterate_batches(
    wide: NDArray[np.uint8], points: NDArray[np.float32], recipe: LandmarkRecipe, rng: np.random.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Iterate once over (n, W, W) wide patches and their (n, 5, 2) points, jittered, about half of them mirrored.

    Yields normalised patches (b, 1, S, S) and the wanted offsets (b, 10).
    """
    order = rng.permutation(len(wide))
    for chosen in np.split(order, range(recipe.batch, len(order), recipe.batch)):
        seen, wanted = (
            np.empty((len(chosen), PATCH_PIXELS, PATCH_PIXELS), np.float32),
            np.empty((len(chosen), 5, 2), np.float32),
        )
        for at, (i, frame) in enumerate(zip(chosen, draw_jitters(len(chosen), recipe, rng), strict=True)):
            patch, true = wide[i], points[i]
            if rng.random() < 0.5:
                patch, true = (
                    patch[:, ::-1],
                    np.column_stack([WIDE_PATCH_PIXELS - 1 - true[:, 0], true[:, 1]])[MIRRORED_ORDER],
                )
            seen[at], wanted[at] = (
                degrade(warp(patch, frame, (PATCH_PIXELS, PATCH_PIXELS)), rng),
                (moved(frame, true) - TEMPLATE) / EYE_DISTANCE_PIXELS,
            )
        yield torch.from_numpy(normalise_patches(seen)), torch.from_numpy(wanted.reshape(-1, 10))


def fit(
    wide: NDArray[np.uint8],
    points: NDArray[np.float32],
    recipe: LandmarkRecipe,
    report: Callable[[int, float], None],
) -> nn.Sequential:
    """Fit the network to (n, W, W) wide patches and their (n, 5, 2) points; return it in evaluation mode.

    report: called with the epoch and its mean loss after each epoch
    """
    torch.manual_seed(recipe.seed)
    rng = np.random.default_rng(recipe.seed)
    model: nn.Sequential = build_network().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    steps = recipe.epochs * -(-len(wide) // recipe.batch)
    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.rate, weight_decay=0.02)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.rate, total_steps=steps, pct_start=0.15)
    loss_of = nn.SmoothL1Loss(beta=0.05)
    for epoch in range(recipe.epochs):
        losses = []
        for seen, wanted in iterate_batches(wide, points, recipe, rng):
            loss = loss_of(model(seen), wanted)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            rate.step()
            losses.append(loss.item())
        report(epoch, float(np.mean(losses)))
    model.train(False)
    return model


def accuracy(
    model: nn.Sequential,
    wide: NDArray[np.uint8],
    points: NDArray[np.float32],
    recipe: LandmarkRecipe,
    within: float = 0.15,
) -> float:
    """Return the share of jittered patches on which one view finds all five points within `within` eye distances.

    wide: (n, W, W); points: (n, 5, 2)
    """
    predicted = []
    for seen, wanted in iterate_batches(wide, points, recipe, np.random.default_rng(recipe.seed)):
        with torch.no_grad():
            off = (model(seen) - wanted).reshape(-1, 5, 2).norm(dim=2)
        predicted.append((off.max(1).values < within).numpy())
    return float(np.concatenate(predicted).mean())


def check_export() -> None:
    """Raise Unavailable if the package that `export` needs is missing."""
    if find_spec("onnx") is None:
        raise Unavailable("writing the landmark model needs the package `onnx`: pip install onnx")


def export(model: nn.Sequential, out: Path) -> None:
    """Write the network as an ONNX file: input `patches` (n, 1, 64, 64), output `offsets` (n, 10)."""
    with warnings.catch_warnings():
        # the newer exporter needs onnxscript and writes the same graph
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            model.to(memory_format=torch.contiguous_format),  # type: ignore[call-overload]
            (torch.zeros(1, 1, PATCH_PIXELS, PATCH_PIXELS),),
            str(out),
            dynamo=False,
            input_names=["patches"],
            output_names=["offsets"],
            dynamic_axes={"patches": {0: "n"}, "offsets": {0: "n"}},
        )
