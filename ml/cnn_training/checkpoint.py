"""Checkpoints of a CNN training: one file, replaced atomically."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ml.cnn_training.recipe import CnnRecipe
from ml.errors import Corrupt, Unavailable, WrongShape
from ml.files import atomic_write

FILE_NAME = "checkpoint.pt"
CHANGEABLE_OPTIONS = {"hours", "steps", "every", "patience"}
"""Options of the recipe that may differ when a training is resumed."""


def save_checkpoint(state: dict[str, Any], recipe: CnnRecipe, out: Path) -> None:
    """Write the state and the recipe to `out`. If the process is killed meanwhile, the previous checkpoint remains."""
    out.mkdir(parents=True, exist_ok=True)
    with atomic_write(out / FILE_NAME) as file:
        torch.save(state | {"recipe": asdict(recipe)}, file)


def load_checkpoint(recipe: CnnRecipe, out: Path) -> dict[str, Any]:
    """Return the state that `save_checkpoint` wrote.

    Raises Unavailable if there is no checkpoint, Corrupt if it cannot be read, WrongShape if its recipe differs.
    """
    path = out / FILE_NAME
    if not path.is_file():
        raise Unavailable(f"no {FILE_NAME} in {out} to resume from; start without --resume")
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        saved = state.pop("recipe")
    except Exception as error:  # a damaged file can make torch raise any exception
        raise Corrupt(f"the checkpoint in {out.name} cannot be read: {error}") from error
    options = asdict(recipe).items()
    changed = [name for name, value in options if name not in CHANGEABLE_OPTIONS and saved.get(name) != value]
    if changed:
        raise WrongShape(f"{', '.join(changed)} of the resumed training", f"as before: {saved}", asdict(recipe))
    return state
