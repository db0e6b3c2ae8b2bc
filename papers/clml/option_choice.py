"""Choose options once, on an inner split of draw 0, and then keep them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from papers.clml.fits import DESCRIPTOR_NAMES, Options, is_available
from papers.harness.results import Queries, figures
from papers.harness.run_context import RunContext
from papers.harness.table_types import Computation, Row, Table

COLUMNS = ("mAP", "1@10")
Case = tuple[str, str]
"""A feature and a kind of protocol, "queries" or "disjoint"."""


@dataclass(frozen=True)
class OptionGrid:
    """The candidates, step by step; each step uses the best options of the steps before."""

    ldml: Sequence[Mapping[str, Any]]
    clml: Sequence[Mapping[str, Any]]
    k: Sequence[int]

    def steps(self) -> list[tuple[str, Sequence[Any]]]:
        return [("ldml", self.ldml), ("clml", self.clml), ("k", self.k)]


def possible(context: RunContext, grids: Mapping[Case, OptionGrid]) -> dict[Case, OptionGrid]:
    """Return the grids of the available descriptors; none in a quick run."""
    return {case: grid for case, grid in grids.items() if not context.scope.quick and is_available(context, case[0])}


@dataclass(frozen=True)
class OptionChoice:
    """The state of a choice.

    tried: every candidate so far with its step and computation; options: the best so far; done: whether all were tried
    """

    tried: Sequence[tuple[str, Options, Computation]]
    options: Options
    done: bool


@dataclass(frozen=True, eq=False)
class Choices:
    """The choices of all cases. grids: candidates by case; start: initial options"""

    context: RunContext
    grids: Mapping[Case, OptionGrid]
    start: Mapping[Case, Options]
    scores: dict[str, float] = field(default_factory=dict)

    def of(self, case: Case) -> OptionChoice:
        """Return the choice as far as results are available; without a grid, the initial options."""
        tried: list[tuple[str, Options, Computation]] = []
        now = self.start[case]
        for name, values in self.grids[case].steps() if case in self.grids else []:
            step = self._step(case, name, [replace(now, **{name: v}) for v in values])
            tried += step
            if not all(self.context.store.has(computation) for _, _, computation in step):
                return OptionChoice(tried, now, False)
            now = max(step, key=lambda one: self._score(one[2]))[1]
        return OptionChoice(tried, now, True)

    def computations(self) -> list[Computation]:
        return [computation for case in self.grids for _, _, computation in self.of(case).tried]

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
        return Table("choice", "The choice of options", header, COLUMNS, rows, notes=notes)

    def _rows(self, case: Case) -> list[Row]:
        choice = self.of(case)
        made = []
        for name, options, computation in choice.tried:
            value = getattr(options, name)
            title = f"{DESCRIPTOR_NAMES[case[0]]}, {case[1]}: {name} {json.dumps(value)}"
            remark = "taken" if value == getattr(choice.options, name) else ""
            made.append(
                Row(
                    title,
                    figures([self.context.result(computation)], COLUMNS),
                    cause=remark,
                    computations=[computation],
                )
            )
        return made

    def _step(self, case: Case, name: str, candidates: Sequence[Options]) -> list[tuple[str, Options, Computation]]:
        """List the candidates of a step, without those that are equal to an earlier one."""
        kept: dict[str, tuple[str, Options, Computation]] = {}
        for options in candidates:
            computation = self._computation(case, name, options)
            kept.setdefault(_plain(computation), (name, options, computation))
        return list(kept.values())

    def _computation(self, case: Case, name: str, options: Options) -> Computation:
        method = options.of_ldml() if name == "ldml" else options.of_clml()
        return self.context.retrieval(method, case[0], f"inner-{case[1]}-0")

    def _score(self, computation: Computation) -> float:
        name = json.dumps(computation.key, sort_keys=True)
        if name not in self.scores:
            self.scores[name] = float(np.nanmean(Queries.of(self.context.result(computation)).values("mAP")))
        return self.scores[name]


def _plain(computation: Computation) -> str:
    """Normalise the key of a fit: `spherical` 0 is the default."""
    return json.dumps(
        {k: v for k, v in computation.key["options"].items() if (k, v) != ("spherical", 0.0)}, sort_keys=True
    )
