"""From photos to a network in a file: the door to this package."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ml.cnn_training import checkpoint
from ml.cnn_training.course import Course, Stand
from ml.cnn_training.crew import Crew
from ml.cnn_training.crops import Lesson
from ml.cnn_training.export import MANIFEST
from ml.cnn_training.judge import Score
from ml.cnn_training.recipe import Recipe


@dataclass(frozen=True)
class Report:
    """done: from 0 to 1; rate: photos a second over all processes; score: where it was judged just now."""

    stand: Stand
    done: float
    rate: float
    score: Score | None = None


def train(
    lesson: Lesson,
    recipe: Recipe,
    out: Path,
    us: Crew,
    *,
    licence: str,
    trained: str,
    start: Path | None = None,
    resume: bool = False,
    tell: Callable[[Report], None] = lambda report: None,
) -> Path:
    """Teaches until the recipe's end; returns the manifest of the network that was best by the people held out.

    Of several processes each calls this with the same arguments; the first alone writes and tells.
    licence, trained: words for the manifest; start: the manifest of a network of the same kind to begin with.
    Raises TooFewPairs; with start Unavailable, Corrupt; with resume Unavailable, Corrupt, WrongShape.
    """
    course = Course(lesson, recipe, us, start)
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
            tell(Report(course.stand, done, course.photos / max(course.stand.seconds, 1e-9), score))
        if not ended:
            course.learn(done)
    return out / MANIFEST


def _done(recipe: Recipe, stand: Stand) -> float:
    by_steps = stand.step / recipe.steps if recipe.steps else 0.0
    by_clock = stand.seconds / (3600 * recipe.hours) if recipe.hours else 0.0
    return min(1.0, max(by_steps, by_clock))
