"""The systems of 000, by the names of its Table 3."""

from dataclasses import dataclass
from typing import Any

from papers.cosim.systems import System
from papers.harness.run_context import Method

PRINTED_OPTIONS: dict[str, Any] = {"whitening": "all", "unit": False, "reach": 0.0, "rate": 1e-3}
"""000's own settings (section 2.7): whitening over all faces, start at W = I and b near 0, Adam at 0.001."""
OUR_CHANGES = "whitened within people, unit length, another step"
ALTERED = {
    "LDML": "LDML with our start, unit length and regulariser", "SML-S": OUR_CHANGES, "SML-L": OUR_CHANGES,
    "CoSiM-m": OUR_CHANGES, "CoSiM-a": OUR_CHANGES, "JSML": f"its members are {OUR_CHANGES}",
}  # fmt: skip
"""How systems differ from the paper's."""
STEPS, QUICK_STEPS, PRINTED_STEPS = 1500, 300, 3000
LONG_RUN_STEPS = {"ours": 6000, "as printed": 12000}
INNER_DIMS = (25, 50, 100, 200, 500)
SUB = "Sub-SML"
SINGLE, JOINT = ("SML-S", "SML-L"), ("CoSiM-m", "CoSiM-a")
Systems = dict[str, System]


@dataclass(frozen=True)
class SystemCatalogue:
    """The systems of the chapter.

    quick: without Fisher vectors, sweeps and long runs; steps: at most so many minibatches for CoSiM's networks
    inner: r, the number of components that each descriptor is whitened to; dim: of LDML
    """

    quick: bool
    steps: int = STEPS
    inner: int = 300
    dim: int = 64

    def networks(self) -> Systems:
        """Return SML on each descriptor, and both forms of CoSiM on both."""
        systems = [
            self._network("SML-S", "sml", "sift"),
            self._network("SML-L", "sml", "lbp"),
            *self._joint("lbp+sift"),
        ]
        return {one.name: one for one in systems}

    def others(self) -> Systems:
        """Return the further systems of Tables 4 to 6."""
        systems = {"LDML": System("LDML", Method("ldml", self.dim, {"needed": 2}), "sift", stops=False)}
        systems |= {f"{SUB}, SIFT": self._sub("sift"), f"{SUB}, LBP": self._sub("lbp")}
        for feature in ("sift", "lbp", "fplbp"):
            systems |= {f"{feature.upper()}, {name}": self._plain(feature, name) for name in ("Euclidean", "cosine")}
        systems["FPLBP, SML"] = self._network("SML-F", "sml", "fplbp")
        systems |= {f"both, {one.name}": one for one in self._joint("lbp+fplbp")}
        return systems if self.quick else systems | self._list_slow_systems()

    def long(self) -> Systems:
        """Return the systems of Figure 5 by `<system>, <panel>`."""
        if self.quick:
            return {f"{name}, ours": one for name, one in self.networks().items()}
        ours = {f"{n}, ours": one.with_options(n, steps=LONG_RUN_STEPS["ours"]) for n, one in self.networks().items()}
        return ours | {
            f"{n}, as printed": _printed(one, LONG_RUN_STEPS["as printed"]) for n, one in self.networks().items()
        }

    def sweeps(self) -> dict[str, list[tuple[int, System]]]:
        """Return the systems of Figure 10 by r."""
        inners = [] if self.quick else sorted({*INNER_DIMS, self.inner})
        wide = {name: one for name, one in self.networks().items() if name != "SML-S"}
        return {n: [(r, one.with_options(n, inner=r)) for r in inners] for n, one in wide.items() if inners}

    def _list_slow_systems(self) -> Systems:
        systems = {"SML, FV": self._network("SML, FV", "sml", "fisher"), f"{SUB}, FV": self._sub("fisher")}
        systems |= {f"{one.name}, LBP, SIFT, FV": one for one in self._joint("lbp+sift+fisher")}
        return systems | {f"{one.name}, as printed": _printed(one, PRINTED_STEPS) for one in self._joint("lbp+sift")}

    def _network(self, name: str, method: str, features: str) -> System:
        return System(name, Method(method, 0, {"steps": self.steps, "needed": 2, "inner": self.inner}), features)

    def _joint(self, features: str) -> list[System]:
        methods = ("cosim_mass", "cosim_average")
        return [self._network(name, method, features) for name, method in zip(JOINT, methods, strict=True)]

    def _sub(self, features: str) -> System:
        return System(SUB, Method("subsml", 0, {"needed": 2, "inner": self.inner}), features, stops=False)

    def _plain(self, features: str, name: str) -> System:
        """Return equations 17 and 30 of 000 on the networks' input, which needs no labels."""
        return System(name, Method("wpca", self.inner, {"unit": name == "cosine"}), features, stops=False)


def _printed(system: System, steps: int) -> System:
    return system.with_options(f"{system.name}, as printed", steps=steps, **PRINTED_OPTIONS)
