"""Train a CNN from labelled crops: the entry point of this package."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ml.cnn_training.checkpoint import load_checkpoint
from ml.cnn_training.crops import LabelledCrops
from ml.cnn_training.export import MANIFEST_FILE
from ml.cnn_training.process_group import ProcessGroup
from ml.cnn_training.recipe import CnnRecipe
from ml.cnn_training.trainer import CnnTrainer, TrainingState
from ml.cnn_training.validation import RetrievalScore


@dataclass(frozen=True)
class TrainingProgress:
    """The progress of a training.

    done: share of the training, 0..1; rate: photos per second over all processes
    score: the result of a validation, if one has just taken place
    """

    state: TrainingState
    done: float
    rate: float
    score: RetrievalScore | None = None


def train(
    data: LabelledCrops,
    recipe: CnnRecipe,
    out: Path,
    group: ProcessGroup,
    *,
    licence: str,
    trained: str,
    start: Path | None = None,
    resume: bool = False,
    report: Callable[[TrainingProgress], None] = lambda progress: None,
) -> Path:
    """Train a network and return the manifest of the version that scored best on held-out people.

    If several processes train together, each calls this with the same arguments; only the first writes and reports.
    out: folder for weights, manifest and checkpoint; licence, trained: texts for the manifest
    start: manifest of a network of the same kind to start from; resume: continue from the checkpoint in `out`
    Raises TooFewPairs; with `start`, Unavailable and Corrupt; with `resume`, Unavailable, Corrupt and WrongShape.
    """
    trainer = CnnTrainer(data, recipe, group, start)
    if resume:
        trainer.restore(load_checkpoint(recipe, out))
    started_at = time.monotonic() - trainer.state.seconds
    validated_at, ended = trainer.state.seconds, False
    while not ended:
        seconds = time.monotonic() - started_at
        [trainer.state.seconds, stale] = group.broadcast(seconds, trainer.state.stale)
        done, score = _share_done(recipe, trainer.state), None
        ended = done >= 1 or 0 < recipe.patience <= stale
        if group.rank == 0 and (ended or trainer.state.seconds - validated_at >= 60 * recipe.every):
            validated_at = trainer.state.seconds
            score = trainer.validate_and_save(out, licence, trained)
        if group.rank == 0:
            rate = trainer.photos_seen / max(trainer.state.seconds, 1e-9)
            report(TrainingProgress(trainer.state, done, rate, score))
        if not ended:
            trainer.step(done)
    return out / MANIFEST_FILE


def _share_done(recipe: CnnRecipe, state: TrainingState) -> float:
    by_steps = state.step / recipe.steps if recipe.steps else 0.0
    by_clock = state.seconds / (3600 * recipe.hours) if recipe.hours else 0.0
    return min(1.0, max(by_steps, by_clock))
