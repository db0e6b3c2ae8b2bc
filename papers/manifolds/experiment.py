"""What the experiments of 001 share as parts of its chapter: rates that are chosen first, then the fits."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from papers.harness.lab_fits import Lab
from papers.harness.table_types import Table, Work
from papers.manifolds.head_comparison import HeadComparison
from papers.manifolds.head_layers import HEADS, QUICK, best

SAME = (
    "Conv descends as qConv does, momentum included, without the projection; all heads of a seed begin with one matrix "
    "and see the same batches."
)


class Experiment(ABC):
    """Works, and once they are done tables and what the heads gain."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.quick = lab, lab.scope.quick

    def works(self) -> list[Work]:
        choices = [] if self.quick else [*self.choices.values()]
        return choices if self.rates is None else [*choices, *self.chosen_works()]

    @property
    @abstractmethod
    def choices(self) -> dict[str, Work]:
        """By head; facts `errors` by rate."""

    @abstractmethod
    def chosen_works(self) -> list[Work]:
        """Asked for once all rates are chosen."""

    @abstractmethod
    def tables(self) -> Sequence[Table]: ...

    @abstractmethod
    def trials(self) -> Sequence[HeadComparison]: ...

    @property
    def rates(self) -> dict[str, float] | None:
        """By head; None until all are chosen."""
        if self.quick:
            return {head: QUICK[head] for head in self.choices}
        if not all(self.lab.store.has(work) for work in self.choices.values()):
            return None
        return {head: best(self.lab.result(work).record["errors"]) for head, work in self.choices.items()}

    @property
    def known(self) -> dict[str, float]:
        rates = self.rates
        assert rates is not None, "asked for once all are chosen"
        return rates

    @property
    def how(self) -> str:
        """How rates were come by, for a header."""
        return "rates as they come" if self.quick else "each head's rate chosen among five on an inner split"

    def describe_rates(self) -> str:
        """The rates, and which fits went astray at them, for a note."""
        rates = "Rates: " + ", ".join(f"{HEADS[head].title} {rate:g}" for head, rate in self.known.items())
        ends = {w.name: self.lab.result(w).record.get("astray") for w in self.chosen_works()}
        astray = ", ".join(f"{name} (step {end:,})" for name, end in ends.items() if end)
        return rates + (f". Went astray, and are judged as they were shortly before: {astray}" if astray else "")


def flat(works: Mapping[str, Sequence[Work]]) -> list[Work]:
    return [work for group in works.values() for work in group]
