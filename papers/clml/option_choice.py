"""Options that are chosen once, on an inner split of draw 0, and then frozen."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from papers.clml.fits import NAMES, Options, is_available
from papers.harness.lab_fits import Lab
from papers.harness.results import Queries, figures
from papers.harness.table_types import Row, Table, Work

COLUMNS = ("mAP", "1@10")
Case = tuple[str, str]
"""A feature and a kind of protocol, "queries" or "disjoint"."""


@dataclass(frozen=True)
class OptionGrid:
    """What is tried, one after the other, each with the best of what came before it."""

    ldml: Sequence[Mapping[str, Any]]
    clml: Sequence[Mapping[str, Any]]
    k: Sequence[int]

    def steps(self) -> list[tuple[str, Sequence[Any]]]:
        return [("ldml", self.ldml), ("clml", self.clml), ("k", self.k)]


def possible(lab: Lab, grids: Mapping[Case, OptionGrid]) -> dict[Case, OptionGrid]:
    """Those of descriptors that are to be had; none in a quick look."""
    return {case: grid for case, grid in grids.items() if not lab.scope.quick and is_available(lab, case[0])}


@dataclass(frozen=True)
class OptionChoice:
    """tried: of every step whose candidates are known, each with its work; options: the best so far; done: of all."""

    tried: Sequence[tuple[str, Options, Work]]
    options: Options
    done: bool


@dataclass(frozen=True, eq=False)
class Choices:
    """grids: by case. start: the options before anything is chosen."""

    lab: Lab
    grids: Mapping[Case, OptionGrid]
    start: Mapping[Case, Options]
    scores: dict[str, float] = field(default_factory=dict)

    def of(self, case: Case) -> OptionChoice:
        """As far as results are there; where there is no grid, what it starts from."""
        tried: list[tuple[str, Options, Work]] = []
        now = self.start[case]
        for name, values in self.grids[case].steps() if case in self.grids else []:
            step = self._step(case, name, [replace(now, **{name: v}) for v in values])
            tried += step
            if not all(self.lab.store.has(work) for _, _, work in step):
                return OptionChoice(tried, now, False)
            now = max(step, key=lambda one: self._score(one[2]))[1]
        return OptionChoice(tried, now, True)

    def works(self) -> list[Work]:
        return [work for case in self.grids for _, _, work in self.of(case).tried]

    @property
    def done(self) -> bool:
        return all(self.of(case).done for case in self.grids)

    def table(self) -> Table:
        header = "LFW, mAP and 1-call@10 in percent on an inner split of draw 0's training side, which holds no query"
        rows = [row for case in self.grids for row in self._rows(case)]
        notes = [
            "of `queries`, the inner split searches for one more photo of each person who has four",
            "of `disjoint`, a fifth of the people who may be learned from are held out",
            "the best mAP of each step is taken",
        ]
        return Table("choice", "What was chosen, and on what grounds", header, COLUMNS, rows, notes=notes)

    def _rows(self, case: Case) -> list[Row]:
        choice = self.of(case)
        made = []
        for name, options, work in choice.tried:
            value = getattr(options, name)
            title = f"{NAMES[case[0]]}, {case[1]}: {name} {json.dumps(value)}"
            remark = "taken" if value == getattr(choice.options, name) else ""
            made.append(Row(title, figures([self.lab.result(work)], COLUMNS), cause=remark, works=[work]))
        return made

    def _step(self, case: Case, name: str, candidates: Sequence[Options]) -> list[tuple[str, Options, Work]]:
        """Without those that are an earlier one in other words."""
        kept: dict[str, tuple[str, Options, Work]] = {}
        for options in candidates:
            work = self._work(case, name, options)
            kept.setdefault(_plain(work), (name, options, work))
        return list(kept.values())

    def _work(self, case: Case, name: str, options: Options) -> Work:
        method = options.of_ldml() if name == "ldml" else options.of_clml()
        return self.lab.retrieval(method, case[0], f"inner-{case[1]}-0")

    def _score(self, work: Work) -> float:
        name = json.dumps(work.key, sort_keys=True)
        if name not in self.scores:
            self.scores[name] = float(np.nanmean(Queries.of(self.lab.result(work)).values("mAP")))
        return self.scores[name]


def _plain(work: Work) -> str:
    """What is fitted: `spherical` 0 is what it is unsaid."""
    return json.dumps({k: v for k, v in work.key["options"].items() if (k, v) != ("spherical", 0.0)}, sort_keys=True)
