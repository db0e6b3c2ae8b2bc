"""The learners of 002, their settings, and the rows of each table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from papers.cpmtml.printed_figures import CPMTML, MTLMCA, STML, UTML, WPCA, Name
from papers.cpmtml.tasks import AGE, AUXILIARY_PAIRS, FER, MOOD, PAIRS
from papers.harness.run_context import DESCRIPTOR_WIDTHS, Method

QUICK_STEPS, QUICK_RATE = 100, 0.12
"""Batches per task and rate in a quick run, which chooses nothing."""


@dataclass(frozen=True, eq=False)
class PaperLearner:
    """A learner.

    name: in tables; the part before a comma is the name in 002; method: the embedder; aux: the second task
    altered: how it differs from the paper's
    """

    name: str
    method: str
    aux: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    altered: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} ({self.aux})" if self.aux else self.name

    @property
    def printed(self) -> Name:
        return self.name.split(",")[0], self.aux

    @property
    def coupled(self) -> bool:
        """Whether it stores 2d numbers per face."""
        return self.method == "cpmtml"

    @property
    def learns(self) -> bool:
        return self.method != "wpca"

    @property
    def tasks(self) -> int:
        return 2 if self.aux else 1


NEXT_COMPONENTS_NOTE = "L0 from the next components"
WPCA_LEARNER = PaperLearner(WPCA[0], "wpca")
STML_LEARNER = PaperLearner(STML[0], "stml")
UTML_LEARNERS = [PaperLearner(UTML, "utml", aux) for aux in (MOOD, AGE, FER)]
MTLMCA_LEARNERS = [PaperLearner(MTLMCA, "mtlmca", aux, altered="L0 begins at WPCA") for aux in (MOOD, AGE)]
MTLMCA_FROM_EYE = PaperLearner(f"{MTLMCA}, L0 from eye(d, D) as printed", "mtlmca", MOOD, {"start": "eye"})
CPMTML_LEARNERS = [PaperLearner(CPMTML, "cpmtml", aux, {"common": "first"}) for aux in (MOOD, AGE, FER)]
CPMTML_FROM_NEXT = [
    PaperLearner(f"{CPMTML}, {NEXT_COMPONENTS_NOTE}", "cpmtml", aux, altered=NEXT_COMPONENTS_NOTE)
    for aux in (MOOD, AGE, FER)
]

PLAIN, UNWHITENED = {"whiten": False}, "begins at plain PCA"
PCA = PaperLearner("PCA, not whitened", "wpca", options=PLAIN)
STML_FROM_PCA = PaperLearner(f"{STML[0]}, from PCA", "stml", options=PLAIN, altered=UNWHITENED)
CPMTML_FROM_PCA = [
    PaperLearner(
        f"{CPMTML}, from PCA, {NEXT_COMPONENTS_NOTE}", "cpmtml", aux, PLAIN, f"{UNWHITENED}, {NEXT_COMPONENTS_NOTE}"
    )
    for aux in (MOOD, AGE)
]


@dataclass(frozen=True)
class Setting:
    """A learner with descriptor, dimension and numbers of pairs."""

    learner: PaperLearner
    features: str
    dim: int
    pairs: int = PAIRS
    auxiliary: int = AUXILIARY_PAIRS

    @property
    def method(self) -> Method:
        """The method with the rate and steps of a quick run."""
        one = self.learner
        if not one.learns:
            return Method("wpca", self.dim, one.options)
        many = {"auxiliary_pairs": self.auxiliary} if one.aux else {}
        options = {"pairs": self.pairs, **many, "rate": QUICK_RATE, "steps": one.tasks * QUICK_STEPS, "held_out": 0.0}
        return Method(one.method, self.dim, {**one.options, **options})

    def with_options(self, **options: Any) -> Method:
        return replace(self.method, options={**self.method.options, **options})

    @property
    def title(self) -> str:
        numbers = 2 * self.dim if self.learner.coupled else self.dim
        return f"{self.learner.title}, {numbers} numbers per face"

    @property
    def possible(self) -> bool:
        """Whether the descriptor has enough principal components for the start."""
        next_too = self.learner.coupled and self.learner.options.get("common") != "first"
        axes = 2 * self.dim if next_too else self.dim
        return axes <= DESCRIPTOR_WIDTHS[self.features]

    @property
    def step_seconds(self) -> float:
        """The seconds of a batch of 256 pairs, on the machine of docs/research/measurements.md."""
        numbers = 2 * self.dim if self.learner.coupled else self.dim
        return 0.002 + DESCRIPTOR_WIDTHS[self.features] / DESCRIPTOR_WIDTHS["lbp"] * (0.012 + 0.0002 * numbers)


def lines(features: str, dim: int, *, every: bool) -> list[Setting]:
    """List the settings of one descriptor at one d, including stML with twice the numbers.

    every: whether to include all rows of Table 6, and FER; for a strong descriptor also learners that start from PCA
    """
    learners = [
        WPCA_LEARNER,
        STML_LEARNER,
        *UTML_LEARNERS,
        *MTLMCA_LEARNERS,
        MTLMCA_FROM_EYE,
        *CPMTML_LEARNERS,
        *CPMTML_FROM_NEXT,
    ]
    if features != "lbp":
        learners += [PCA, STML_FROM_PCA, *CPMTML_FROM_PCA]
    kept = [one for one in learners if every or (one.aux != FER and one.method != "mtlmca")]
    return [s for one in kept for s in _sizes(one, features, dim) if s.possible]


def _sizes(one: PaperLearner, features: str, dim: int) -> list[Setting]:
    """List the settings at d, and at 2d for the learners with which CP-mtML is compared."""
    return [Setting(one, features, d) for d in ((dim, 2 * dim) if one.method == "stml" else (dim,))]


def rivals(one: Setting, among: Sequence[Setting]) -> list[Setting]:
    """Return stML with the same start at the same d, and with the same stored size."""
    start = one.learner.options.get("whiten")
    return [s for s in among if s.learner.method == "stml" and s.learner.options.get("whiten") == start]
