"""002, section 6.1: the time of learning, and the storage of a face."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ml.embedders.base import Embedder, Progress, TrainingSet
from papers.cpmtml.fits import PROTOCOL, CpmtmlFits
from papers.cpmtml.learners import CPMTML_LEARNERS, MTLMCA_LEARNERS, STML_LEARNER, PaperLearner, Setting
from papers.harness.results import Values
from papers.harness.table_types import Computation, ComputationOutput, Figure, Row, Table

DIM, BATCH, UPDATES, PEOPLE = 64, 256, 1e6, 7e9
LEARNERS = (STML_LEARNER, CPMTML_LEARNERS[0], MTLMCA_LEARNERS[0])
STEPS, QUICK, ROUNDS = 100, 30, 3
TIME_COLUMN, RATIO_COLUMN, BYTES_COLUMN, WORLD_COLUMN = (
    "CPU s for 10^6 updates",
    "times stML",
    "bytes per face",
    "TB for 7e9 faces",
)
PAPER = {TIME_COLUMN: 2400.0, RATIO_COLUMN: 2.5, BYTES_COLUMN: 256.0, WORLD_COLUMN: 1.8}
PAPER_SIZE_NOTE = "the paper counts d numbers; CP-mtML compares [L0 x; L1 x], 2d of them"


@dataclass(frozen=True, eq=False)
class SpeedTable:
    """Times the learners in turn, so that other load on the machine slows all of them alike."""

    fits: CpmtmlFits

    def computations(self) -> list[Computation]:
        steps = QUICK if self.fits.context.scope.quick else STEPS
        settings = [Setting(one, "lbp", DIM) for one in LEARNERS]

        def run(folder: Path, progress: Progress) -> ComputationOutput:
            data = self.fits.data(settings[-1], PROTOCOL)
            rounds: list[list[float]] = []
            for number in range(ROUNDS):
                rounds.append([_seconds(s.with_options(steps=steps).build(), data) for s in settings])
                progress(number + 1, ROUNDS, {})
            return {"threads": _threads(), "steps": steps}, {"seconds": np.array(rounds)}

        key = {"paper": "002, 6.1", "dim": DIM, "steps": steps, "learners": [s.learner.title for s in settings]}
        cost = ROUNDS * sum(6.0 + steps * s.step_seconds for s in settings)
        return [Computation("seconds of a step", key, cost, run)]

    def table(self) -> Table:
        """Make the table from the CPU time of the steps."""
        computations = self.computations()
        [result] = self.fits.context.results(computations)
        took = result.arrays["seconds"]
        rows = [
            _row(one, took[:, i], took[:, LEARNERS.index(STML_LEARNER)], computations) for i, one in enumerate(LEARNERS)
        ]
        threads, steps = result.record["threads"], result.record["steps"]
        header = (
            f"LFW, LBP, 9,860 to {DIM} numbers, expression beside. Processor time of {threads} threads together, the "
            f"median of {ROUNDS} rounds of {steps} batches of {BATCH} pairs, in brackets the least and the most; lower "
            "is better. The paper: 40 minutes for 50,000 pairs on a core of 2.5 GHz. How many updates that was is not "
            "published; it is taken for a million, 2.4 ms each."
        )
        return Table(
            "timing",
            "Section 6.1: time and storage",
            header,
            (TIME_COLUMN, RATIO_COLUMN, BYTES_COLUMN, WORLD_COLUMN),
            rows,
        )


def _row(one: PaperLearner, seconds: Values, single: Values, computations: list[Computation]) -> Row:
    numbers = 2 * DIM if one.coupled else DIM
    figures = {TIME_COLUMN: _median(seconds * UPDATES / BATCH), RATIO_COLUMN: _median(seconds / single)}
    figures |= {BYTES_COLUMN: Figure(4.0 * numbers), WORLD_COLUMN: Figure(4e-12 * numbers * PEOPLE)}
    if one not in CPMTML_LEARNERS:
        return Row(one.title, figures, computations=computations)
    return Row(
        one.title, figures, PAPER, cause=f"{PAPER_SIZE_NOTE}; seconds are of another processor and are not compared",
        computations=computations, compared=(RATIO_COLUMN, BYTES_COLUMN), lower_is_better=(RATIO_COLUMN, BYTES_COLUMN),
    )  # fmt: skip


def _median(values: Values) -> Figure:
    return Figure(float(np.median(values)), float(values.min()), float(values.max()))


def _seconds(embedder: Embedder, data: TrainingSet) -> float:
    """Return the CPU seconds of a step, without the start: from the first report to the last."""
    marks: list[tuple[int, float]] = []
    embedder.fit(data, progress=lambda step, *_: marks.append((step, time.process_time())))
    (first, begun), (last, ended) = marks[0], marks[-1]
    return (ended - begun) / (last - first)


def _threads() -> int:
    import torch

    return torch.get_num_threads()
