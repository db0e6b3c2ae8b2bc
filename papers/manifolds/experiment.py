"""The base of the experiments of 001: rates are chosen first, then the heads are fitted."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from papers.harness.run_context import RunContext
from papers.harness.table_types import Computation, Table
from papers.manifolds.head_comparison import HeadComparison
from papers.manifolds.head_layers import HEADS, QUICK, choose_rate

SAME_START_NOTE = (
    "Conv descends as qConv does, momentum included, without the projection; all heads of a seed begin with one matrix "
    "and see the same batches."
)


class Experiment(ABC):
    """An experiment: its computations, tables, and comparisons of the heads."""

    def __init__(self, context: RunContext) -> None:
        self.context, self.quick = context, context.scope.quick

    def computations(self) -> list[Computation]:
        choices = [] if self.quick else [*self.choices.values()]
        return choices if self.rates is None else [*choices, *self.chosen_computations()]

    @property
    @abstractmethod
    def choices(self) -> dict[str, Computation]:
        """Return the computations that choose the rate, by head. Record: `errors` by rate."""

    @abstractmethod
    def chosen_computations(self) -> list[Computation]:
        """Return the computations with the chosen rates. Called once all rates are chosen."""

    @abstractmethod
    def tables(self) -> Sequence[Table]: ...

    @abstractmethod
    def trials(self) -> Sequence[HeadComparison]: ...

    @property
    def rates(self) -> dict[str, float] | None:
        """The rate of each head; None until all are chosen."""
        if self.quick:
            return {head: QUICK[head] for head in self.choices}
        if not all(self.context.store.has(computation) for computation in self.choices.values()):
            return None
        return {
            head: choose_rate(self.context.result(computation).record["errors"])
            for head, computation in self.choices.items()
        }

    @property
    def known(self) -> dict[str, float]:
        rates = self.rates
        assert rates is not None, "asked for once all are chosen"
        return rates

    @property
    def how(self) -> str:
        """A sentence for a header that says how the rates were chosen."""
        return "default rates" if self.quick else "each head's rate chosen among five on an inner split"

    def describe_rates(self) -> str:
        """Describe the rates, and the fits that diverged, for a note."""
        rates = "Rates: " + ", ".join(f"{HEADS[head].title} {rate:g}" for head, rate in self.known.items())
        ends = {w.name: self.context.result(w).record.get("astray") for w in self.chosen_computations()}
        astray = ", ".join(f"{name} (step {end:,})" for name, end in ends.items() if end)
        return rates + (f". Diverged, and are evaluated at their last finite state: {astray}" if astray else "")


def list_all(computations: Mapping[str, Sequence[Computation]]) -> list[Computation]:
    return [computation for group in computations.values() for computation in group]
