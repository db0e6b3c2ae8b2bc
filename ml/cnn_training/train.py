"""From photos to a network in a file: the door to this package."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ml.cnn_training import checkpoint
from ml.cnn_training.crops import LabelledCrops
from ml.cnn_training.export import MANIFEST
from ml.cnn_training.process_group import ProcessGroup
from ml.cnn_training.recipe import CnnRecipe
from ml.cnn_training.trainer import CnnTrainer, TrainingState
from ml.cnn_training.validation import RetrievalScore


@dataclass(frozen=True)
class TrainingProgress:
    """done: from 0 to 1; rate: photos a second over all processes; score: where it was judged just now."""

    stand: TrainingState
    done: float
    rate: float
    score: RetrievalScore | None = None


def train(
    lesson: LabelledCrops,
    recipe: CnnRecipe,
    out: Path,
    us: ProcessGroup,
    *,
    licence: str,
    trained: str,
    start: Path | None = None,
    resume: bool = False,
    tell: Callable[[TrainingProgress], None] = lambda report: None,
) -> Path:
    """Teaches until the recipe's end; returns the manifest of the network that was best by the people held out.

    Of several processes each calls this with the same arguments; the first alone writes and tells.
    licence, trained: words for the manifest; start: the manifest of a network of the same kind to begin with.
    Raises TooFewPairs; with start Unavailable, Corrupt; with resume Unavailable, Corrupt, WrongShape.
    """
    course = CnnTrainer(lesson, recipe, us, start)
    if resume:
        course.restore(checkpoint.load(recipe, out))
    begun, judged_at, ended = time.monotonic() - course.stand.seconds, course.stand.seconds, False
    while not ended:
        [course.stand.seconds, stale] = us.agreed(time.monotonic() - begun, course.stand.stale)
        done, score = _done(recipe, course.stand), None
        ended = done >= 1 or 0 < recipe.patience <= stale
        if us.rank == 0 and (ended or course.stand.seconds - judged_at >= 60 * recipe.every):
            judged_at = course.stand.seconds
            score = course.keep(out, licence, trained)
        if us.rank == 0:
            tell(TrainingProgress(course.stand, done, course.photos / max(course.stand.seconds, 1e-9), score))
        if not ended:
            course.learn(done)
    return out / MANIFEST


def _done(recipe: CnnRecipe, stand: TrainingState) -> float:
    by_steps = stand.step / recipe.steps if recipe.steps else 0.0
    by_clock = stand.seconds / (3600 * recipe.hours) if recipe.hours else 0.0
    return min(1.0, max(by_steps, by_clock))
