"""How often the stopping rule for labels holds, on the runs that `benchmarks.question_rules` has stored.

    python -m benchmarks.question_stopping --json .likeness/question_rules.json [--rule suggested]

A run has models at rising numbers of labels. Half of the searched people measure the gain of each step, as a training's
report does; the other half shows what the next step really gained. A bound holds if that gain is not above it. Steps
are of runs whose numbers of labels rise evenly, so that the next step is as large as the one measured.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ml.active_learning.expected_gain import STOP_POINTS, MeasuredStep, forecast
from ml.evaluation.comparisons.paired_tests import compare


class StepJudgement(NamedTuple):
    """A forecast and what followed, in points of mAP. noise: standard error of `gained`"""

    expected: float
    at_most: float
    enough: bool
    gained: float
    noise: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path(".likeness/question_rules.json"))
    parser.add_argument("--rule", default="suggested")
    options = parser.parse_args()
    runs = json.loads(options.json.read_text())
    for photo_set in ("lfw", "celeba"):
        judged = [
            judgement
            for key, run in runs.items()
            if key.startswith(f"{photo_set}, {options.rule},")
            for judgement in judge_run(run, seed=int(key.rsplit(" ", 1)[1]))
        ]
        if judged:
            show(photo_set, judged)


def judge_run(run: dict[str, Any], seed: int) -> Iterator[StepJudgement]:
    """Judge the forecasts of the evenly spaced steps of a run."""
    sizes = sorted(int(size) for size in run)
    people = np.array(run["0"]["people"])
    numbers = np.unique(people)
    measuring = np.isin(people, np.random.default_rng(seed).permutation(numbers)[: len(numbers) // 2])
    precision = {size: 100 * np.array(run[str(size)]["ap"]) for size in sizes}
    for before, now, after in zip(sizes, sizes[1:], sizes[2:], strict=False):
        if after - now != now - before:
            continue
        measured = compare(precision[now][measuring], precision[before][measuring], people[measuring]).difference
        outlook = forecast(MeasuredStep(before, now, measured.value, measured.low, measured.high), now, after - now)
        gains = precision[after][~measuring] - precision[now][~measuring]
        noise = float(gains.std(ddof=1) / len(gains) ** 0.5)
        yield StepJudgement(outlook.expected, outlook.at_most, outlook.enough, float(gains.mean()), noise)


def show(photo_set: str, judged: list[StepJudgement]) -> None:
    gained = np.array([judgement.gained for judgement in judged])
    expected = np.array([judgement.expected for judgement in judged])
    held = np.mean([judgement.gained <= judgement.at_most for judgement in judged])
    within_noise = np.mean([judgement.gained <= judgement.at_most + 1.96 * judgement.noise for judgement in judged])
    stops = [judgement.gained for judgement in judged if judgement.enough]
    print(
        f"{photo_set}: {len(judged)} steps; bound held {held:.0%}, within the noise of what followed {within_noise:.0%}"
    )
    error = float(np.sqrt(np.mean((expected - gained) ** 2)))
    print(f"  expected {expected.mean():+.2f}, gained {gained.mean():+.2f}, rms error {error:.2f}")
    if stops:
        print(
            f"  said enough (at most {STOP_POINTS}): {len(stops)} times; then gained {np.mean(stops):+.2f} on average"
        )


if __name__ == "__main__":
    main()
