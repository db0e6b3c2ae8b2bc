"""The fits of 003's tables: which method with which options, on which draws of which protocol."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from papers.harness.lab_fits import Lab, Method
from papers.harness.photos import MIRRORED, MODEL
from papers.harness.table_types import Work

NAMES = {"lbp": "LBP", "fisher": "FV", "mobilefacenet": "CNN (MobileFaceNet)"}
WIDTH = {"lbp": 9860, "fisher": 16896, "mobilefacenet": 128}
BOTH_SIDES = {"lbp": "lbp" + MIRRORED, "fisher": "fisher" + MIRRORED}
"""The same descriptors of a crop and its mirror image, past the paper."""
DIM, K = 32, 16
KS = (2, 4, 8, 16, 32, 64)
DIMS = (16, 32, 64, 128, 256)


def is_available(lab: Lab, features: str) -> bool:
    """Whether it can be computed: the network may not be there."""
    return features != MODEL or lab.photos.has_model


def name_features(features: str) -> str:
    """As tables name it."""
    name = NAMES[features.removesuffix(MIRRORED)]
    return f"{name}, both sides" if features.endswith(MIRRORED) else name


@dataclass(frozen=True)
class Options:
    """What was chosen for a feature and a kind of protocol: of LDML, of CLML beside that, and k."""

    ldml: Mapping[str, Any] = field(default_factory=dict)
    clml: Mapping[str, Any] = field(default_factory=dict)
    k: int = K

    def of_ldml(self, dim: int = DIM, **more: Any) -> Method:
        return Method("ldml", dim, {**self.ldml, **more})

    def of_clml(self, k: int | None = None, dim: int = DIM, **more: Any) -> Method:
        return Method("clml", dim, {**self.ldml, **self.clml, "k": k or self.k, **more})


@dataclass(frozen=True)
class Sizes:
    """Of Figure 5: numbers of cells; how many vectors are drawn for speed alone, and their cells."""

    cells: tuple[int, ...] = (16, 64, 256, 1024)
    many: int = 1_000_000
    cells_of_many: int = 1024


@dataclass(frozen=True, eq=False)
class ClmlFits:
    """chosen: by (feature, "queries" or "disjoint")."""

    lab: Lab
    chosen: Mapping[tuple[str, str], Options]
    sizes: Sizes = Sizes()

    @property
    def features(self) -> list[str]:
        """All that are to be had but those that a quick look has no time for."""
        return ["lbp"] if self.lab.scope.quick else [f for f in NAMES if is_available(self.lab, f)]

    @property
    def best(self) -> str:
        """The paper's best descriptor, Fisher vectors, where there is time for it."""
        return self.features[min(1, len(self.features) - 1)]

    @property
    def many(self) -> int:
        return self.sizes.many // 10 if self.lab.scope.quick else self.sizes.many

    def options(self, features: str, kind: str = "queries") -> Options:
        """Of a mirrored descriptor, those that were chosen for the plain one."""
        return self.chosen[features.removesuffix(MIRRORED), kind]

    def draws(self, features: str, dim: int = DIM, sweep: bool = False) -> range:
        cheap = features.removesuffix(MIRRORED) == "lbp"
        return self.lab.scope.seeds if cheap and dim == DIM and not sweep else self.lab.scope.few_seeds

    def name_protocols(self, features: str, dim: int = DIM, sweep: bool = False, kind: str = "queries") -> str:
        """Which protocol files: `queries-0..9`."""
        last = len(self.draws(features, dim, sweep)) - 1
        return f"`{kind}-0" + (f"..{last}`" if last else "`")

    def works(self, method: Method, features: str, kind: str = "queries", sweep: bool = False) -> list[Work]:
        """One a draw. sweep: one of many settings, so on fewer draws."""
        draws = self.draws(features, method.dim or DIM, sweep)
        return [self.lab.retrieval(method, features, f"{kind}-{i}") for i in draws]

    def l2(self, features: str) -> list[Work]:
        return self.works(Method("l2"), features)

    def ldml(self, features: str, dim: int = DIM, kind: str = "queries") -> list[Work]:
        return self.works(self.options(features, kind).of_ldml(dim), features, kind)

    def clml(self, features: str, k: int | None = None, dim: int = DIM, kind: str = "queries") -> list[Work]:
        """k: None for the chosen one. On all draws where it is the chosen one or the paper's 16."""
        options = self.options(features, kind)
        return self.works(options.of_clml(k, dim), features, kind, sweep=k not in (None, K, options.k))
