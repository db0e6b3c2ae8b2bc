"""Where a training stands, in one file that is always whole."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ml.cnn_training.recipe import CnnRecipe
from ml.errors import Corrupt, Unavailable, WrongShape

NAME = "checkpoint.pt"
MAY_CHANGE = {"hours", "steps", "every", "patience"}
"""Options that a resumed training may be given anew."""


def save(state: dict[str, Any], recipe: CnnRecipe, out: Path) -> None:
    """Written beside and renamed: a kill leaves the one before."""
    out.mkdir(parents=True, exist_ok=True)
    part = out / f".{NAME}"
    with part.open("wb") as file:
        torch.save(state | {"recipe": asdict(recipe)}, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(out / NAME)


def load(recipe: CnnRecipe, out: Path) -> dict[str, Any]:
    """What `save` wrote, if it was of this recipe. Raises Unavailable, Corrupt, WrongShape."""
    path = out / NAME
    if not path.is_file():
        raise Unavailable(f"no {NAME} in {out} to resume from; start without --resume")
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        was = state.pop("recipe")
    except Exception as error:  # a broken file may make its reader raise anything
        raise Corrupt(f"the checkpoint in {out.name} cannot be read: {error}") from error
    other = [name for name, now in asdict(recipe).items() if name not in MAY_CHANGE and was.get(name) != now]
    if other:
        raise WrongShape(f"{', '.join(other)} of the resumed training", f"as before: {was}", asdict(recipe))
    return state
