"""The training itself: `train` is the door, a Course is what stands between two steps."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ml.cnn_training import checkpoint
from ml.cnn_training.augment import augmented
from ml.cnn_training.crew import Crew
from ml.cnn_training.crops import Lesson
from ml.cnn_training.export import MANIFEST, export
from ml.cnn_training.heads import Margin, Taught
from ml.cnn_training.judge import Score, judged, split
from ml.cnn_training.recipe import Recipe
from ml.descriptors._nets import NETS, pictures
from ml.types import Ids

WARM, EASED = 0.05, 0.3
"""Parts of the training after which the rate is at its highest and the margin whole."""


@dataclass
class Stand:
    """step: steps taken; seconds: spent; loss: of late; best: mean average precision of the best judgement, and since
    when there was no better one."""

    step: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    best: float = -1.0
    stale: int = 0


@dataclass(frozen=True)
class Report:
    """done: from 0 to 1; rate: photos a second over all processes; score: where it was judged just now."""

    stand: Stand
    done: float
    rate: float
    score: Score | None = None


class Course:
    """A network being taught by one process of a crew. The same lesson, recipe and crew size: the same steps."""

    def __init__(self, lesson: Lesson, recipe: Recipe, us: Crew) -> None:
        torch.manual_seed(recipe.seed)
        self.lesson, self.recipe, self.us, self.stand = lesson, recipe, us, Stand()
        self.split = split(lesson, recipe.held_out, recipe.seed)
        net = NETS[recipe.net]()
        head = Margin(net.dim, int(self.split.people.max()) + 1, recipe.margin, recipe.scale)
        self.taught = Taught(net, head).to(us.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.alike = us.together(self.taught)
        self.optimiser = torch.optim.AdamW(self.taught.parameters(), recipe.rate, weight_decay=recipe.decay)

    def learn(self, done: float) -> None:
        """One step, `done` of the way to the end."""
        mine = self.mine()
        draw = torch.Generator().manual_seed(_seed(self.recipe.seed, self.stand.step, self.us.rank))
        faces = pictures(torch.from_numpy(np.array(self.lesson.crops[self.split.taught[mine]])).to(self.us.device))
        people = torch.from_numpy(self.split.people[mine]).to(self.us.device)
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate * _rate(done)
        self.taught.head.ease = min(1.0, done / EASED)
        self.optimiser.zero_grad()
        with torch.autocast(self.us.device.type, torch.bfloat16, enabled=self.recipe.bf16):
            loss: Tensor = self.alike(augmented(faces, draw), people)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.stand.step += 1
        self.stand.loss += (loss.item() - self.stand.loss) / min(self.stand.step, 50)

    @property
    def photos(self) -> int:
        """Seen so far, by all processes."""
        return self.stand.step * self.recipe.batch * self.us.size

    def keep(self, out: Path, licence: str, trained: str) -> Score:
        """Judges; writes a checkpoint, and the network where it never was better."""
        score = judged(self.taught.net, self.lesson, self.split.held)
        better = score.map > self.stand.best
        self.stand.best, self.stand.stale = max(score.map, self.stand.best), 0 if better else self.stand.stale + 1
        if better:
            how = f"{self.recipe.net}, {self.recipe.head}, {self.photos:,} photos seen"
            weights = self.taught.net.state_dict()
            export(self.recipe.net, weights, out, dim=self.taught.net.dim, licence=licence, trained=f"{trained}; {how}")
        checkpoint.save(self.state(), self.recipe, out)
        return score

    def state(self) -> dict[str, Any]:
        state = {"taught": self.taught.state_dict(), "optimiser": self.optimiser.state_dict()}
        return state | {"stand": asdict(self.stand)}

    def restore(self, state: dict[str, Any]) -> None:
        self.taught.load_state_dict(state["taught"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.stand = Stand(**state["stand"])

    def mine(self) -> Ids:
        """This process's part of the step's batch; each pass over the photos is in an order of its own."""
        whole = self.recipe.batch * self.us.size
        passes, at = divmod(self.stand.step, max(1, len(self.split.taught) // whole))
        order = np.random.default_rng([self.recipe.seed, passes]).permutation(len(self.split.taught))
        return np.asarray(np.resize(order, (at + 1) * whole)[at * whole :][self.us.rank :: self.us.size])


def train(
    lesson: Lesson,
    recipe: Recipe,
    out: Path,
    us: Crew,
    *,
    licence: str,
    trained: str,
    resume: bool = False,
    tell: Callable[[Report], None] = lambda report: None,
) -> Path:
    """Teaches until the recipe's end; returns the manifest of the network that was best by the people held out.

    Of several processes each calls this with the same arguments; the first alone writes and tells.
    licence, trained: words for the manifest. Raises TooFewPairs; with resume Unavailable, Corrupt, WrongShape.
    """
    course = Course(lesson, recipe, us)
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
    return min(1.0, max(by_steps, stand.seconds / (3600 * recipe.hours)))


def _rate(done: float) -> float:
    """Up in a line, down in a half wave."""
    return done / WARM + 1e-3 if done < WARM else 0.5 + 0.5 * math.cos(math.pi * (done - WARM) / (1 - WARM))


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])
