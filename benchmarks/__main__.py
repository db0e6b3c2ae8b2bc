"""`make bench`: the measurements that need no data of others, one after the other, so that none disturbs another."""

import runpy
import sys

NAMES = ("lbp", "descriptors", "fisher", "gmm", "cosim", "index", "search")


def main() -> None:
    """Those that need LFW are named in docs/measurements.md, with their commands."""
    for name in NAMES:
        print(f"== {name}", flush=True)
        sys.argv = [f"benchmarks.{name}"]
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")


if __name__ == "__main__":
    main()
