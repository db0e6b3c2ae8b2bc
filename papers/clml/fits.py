"""The fits of 003's tables: methods with their options, on draws of the protocols."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from papers.harness.photos import MIRRORED_SUFFIX, MODEL
from papers.harness.run_context import Method, RunContext
from papers.harness.table_types import Computation

DESCRIPTOR_NAMES = {"lbp": "LBP", "fisher": "FV", "mobilefacenet": "CNN (MobileFaceNet)"}
DESCRIPTOR_WIDTH = {"lbp": 9860, "fisher": 16896, "mobilefacenet": 128}
BOTH_SIDES = {"lbp": "lbp" + MIRRORED_SUFFIX, "fisher": "fisher" + MIRRORED_SUFFIX}
"""The same descriptors, averaged over a crop and its mirror image, which the paper does not do."""
DIM, K = 32, 16
LOCAL_MAP_COUNTS = (2, 4, 8, 16, 32, 64)
DIMS = (16, 32, 64, 128, 256)


def is_available(context: RunContext, features: str) -> bool:
    """Whether a descriptor can be computed; the network may be missing."""
    return features != MODEL or context.photos.has_model


def name_features(features: str) -> str:
    """Return the name of a descriptor in tables."""
    name = DESCRIPTOR_NAMES[features.removesuffix(MIRRORED_SUFFIX)]
    return f"{name}, both sides" if features.endswith(MIRRORED_SUFFIX) else name


@dataclass(frozen=True)
class Options:
    """The options chosen for a descriptor and a kind of protocol: for LDML, additional ones for CLML, and k."""

    ldml: Mapping[str, Any] = field(default_factory=dict)
    clml: Mapping[str, Any] = field(default_factory=dict)
    k: int = K

    def of_ldml(self, dim: int = DIM, **more: Any) -> Method:
        return Method("ldml", dim, {**self.ldml, **more})

    def of_clml(self, k: int | None = None, dim: int = DIM, **more: Any) -> Method:
        return Method("clml", dim, {**self.ldml, **self.clml, "k": k or self.k, **more})


@dataclass(frozen=True)
class Sizes:
    """The sizes of Figure 5: numbers of cells; number of random vectors for measuring speed, and their cells."""

    cells: tuple[int, ...] = (16, 64, 256, 1024)
    many: int = 1_000_000
    cells_of_many: int = 1024


@dataclass(frozen=True, eq=False)
class ClmlFits:
    """The fits of the chapter. chosen: options by (descriptor, "queries" or "disjoint")"""

    context: RunContext
    chosen: Mapping[tuple[str, str], Options]
    sizes: Sizes = Sizes()

    @property
    def features(self) -> list[str]:
        """The available descriptors; fewer in a quick run."""
        return ["lbp"] if self.context.scope.quick else [f for f in DESCRIPTOR_NAMES if is_available(self.context, f)]

    @property
    def best(self) -> str:
        """The paper's best descriptor, Fisher vectors, unless the run is quick."""
        return self.features[min(1, len(self.features) - 1)]

    @property
    def many(self) -> int:
        return self.sizes.many // 10 if self.context.scope.quick else self.sizes.many

    def options(self, features: str, kind: str = "queries") -> Options:
        """Return the options of a descriptor; a mirrored one uses those of the plain one."""
        return self.chosen[features.removesuffix(MIRRORED_SUFFIX), kind]

    def draws(self, features: str, dim: int = DIM, sweep: bool = False) -> range:
        cheap = features.removesuffix(MIRRORED_SUFFIX) == "lbp"
        return self.context.scope.seeds if cheap and dim == DIM and not sweep else self.context.scope.few_seeds

    def name_protocols(self, features: str, dim: int = DIM, sweep: bool = False, kind: str = "queries") -> str:
        """Name the protocol files, such as `queries-0..9`."""
        last = len(self.draws(features, dim, sweep)) - 1
        return f"`{kind}-0" + (f"..{last}`" if last else "`")

    def computations(
        self, method: Method, features: str, kind: str = "queries", sweep: bool = False
    ) -> list[Computation]:
        """Return one computation per draw. sweep: whether this is one of many settings, which have fewer draws"""
        draws = self.draws(features, method.dim or DIM, sweep)
        return [self.context.retrieval(method, features, f"{kind}-{i}") for i in draws]

    def l2(self, features: str) -> list[Computation]:
        return self.computations(Method("l2"), features)

    def ldml(self, features: str, dim: int = DIM, kind: str = "queries") -> list[Computation]:
        return self.computations(self.options(features, kind).of_ldml(dim), features, kind)

    def clml(self, features: str, k: int | None = None, dim: int = DIM, kind: str = "queries") -> list[Computation]:
        """Return the fits of CLML. k: None for the chosen one. The chosen k and the paper's 16 use all draws."""
        options = self.options(features, kind)
        return self.computations(options.of_clml(k, dim), features, kind, sweep=k not in (None, K, options.k))
