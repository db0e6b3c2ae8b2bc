"""The training loop: which parameters it keeps, what it reports, and several fits that are computed together."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from ml.metric_learning.training_loop import TrainingLoop, averaging_pace


@dataclass
class Counter:
    """Its parameter is the number of steps; its scores are given. losses: of each step."""

    scores: list[list[float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    steps: int = 0
    kept: list[int] = field(default_factory=lambda: [-1, -1])

    def step(self, step: int) -> float:
        self.steps = step
        return self.losses[step - 1] if self.losses else 1.0

    def keep(self, improved: Tensor) -> None:
        for fit in torch.nonzero(improved).flatten().tolist():
            self.kept[fit] = self.steps

    def score(self) -> Tensor:
        return torch.tensor(self.scores[self.steps], dtype=torch.float64)


def ignore(step: int, steps: int, values: dict[str, float]) -> None:
    pass


def test_the_first_of_the_best_scores_is_kept() -> None:
    counter = Counter(scores=[[0.0], [0.2], [0.5], [0.5], [0.4]])
    outcome = TrainingLoop(4, evaluations=4).run(counter, ignore, counter.score)
    assert counter.kept[0] == 2
    assert outcome.notes == {"steps": 2, "loss": 1.0, "held_out": 0.5}


def test_the_start_is_kept_if_it_is_scored_and_nothing_is_better() -> None:
    for evaluates_start, kept in ((True, 0), (False, 1)):
        counter = Counter(scores=[[0.9], [0.5], [0.4]])
        outcome = TrainingLoop(2, evaluations=2, evaluates_start=evaluates_start).run(counter, ignore, counter.score)
        assert (counter.kept[0], outcome.steps) == (kept, [kept])
        assert outcome.start == ([0.9] if evaluates_start else [None])
        assert outcome.loss == ([None] if evaluates_start else [1.0])


def test_without_people_held_out_the_last_step_is_kept() -> None:
    counter = Counter()
    outcome = TrainingLoop(7).run(counter, ignore)
    assert counter.kept[0] == 7
    assert (outcome.steps, outcome.held_out) == ([7], [None])


def test_no_step_at_all_keeps_the_start() -> None:
    counter = Counter()
    assert TrainingLoop(0).run(counter, ignore).notes == {"steps": 0, "loss": None, "held_out": None}
    assert counter.kept[0] == 0


def test_each_of_several_fits_keeps_its_own_best() -> None:
    counter = Counter(scores=[[0.1, 0.9], [0.2, 0.5], [0.3, 0.6]])
    outcome = TrainingLoop(2, evaluations=2, evaluates_start=True, fits=2).run(counter, ignore, counter.score)
    assert counter.kept == [2, 0]
    assert (outcome.steps, outcome.loss) == ([2, 0], [1.0, None])
    assert outcome.held_out == [0.3, 0.9]


def test_the_loss_is_a_running_mean_and_the_latest_score_is_reported_with_it() -> None:
    seen: list[tuple[int, int, dict[str, float]]] = []
    counter = Counter(scores=[[0.0]] * 2 + [[0.5]] * 3, losses=[4.0, 2.0, 0.0, 2.0])
    loop = TrainingLoop(4, evaluations=2, loss_window=2)
    loop.run(counter, lambda *values: seen.append(values), counter.score)
    assert [(step, steps, values["loss"]) for step, steps, values in seen] == [
        (1, 4, 4.0), (2, 4, 3.0), (3, 4, 1.5), (4, 4, 1.75),
    ]  # fmt: skip
    assert ["held_out" in values for _, _, values in seen] == [False, True, True, True]


def test_an_average_follows_fast_at_first_and_then_at_its_own_pace() -> None:
    paces = [averaging_pace(step, 0.9) for step in (1, 2, 1000)]
    assert paces[0] == 0.9
    assert paces[0] > paces[1] > paces[2]
    assert abs(paces[2] - 0.1) < 1e-12
    assert averaging_pace(5, 0.0) == 1


def test_a_fit_of_a_billion_steps_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped where progress is reported, which is every second, however many steps there are."""
    monkeypatch.setattr("ml.metric_learning.training_loop.MAX_SILENT_SECONDS", 0.05)

    def stop(step: int, steps: int, values: dict[str, float]) -> None:
        raise InterruptedError

    counter = Counter()
    with pytest.raises(InterruptedError):
        TrainingLoop(10**9).run(counter, stop)
    assert 0 < counter.steps < 10**7
