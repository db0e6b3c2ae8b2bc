"""`make bench`: the measurements that need no data of others, one after the other, so that none disturbs another.

Each is a process of its own; those that write JSON write it into a folder, `.bench` unless another is named. At the end
stands what was to be reached, and what was. Those that need LFW are named in docs/research/measurements.md, with their
commands.
"""

import subprocess
import sys
from pathlib import Path

from benchmarks import goals

WITH_JSON = ("lbp", "descriptors", "fisher", "gmm", "cosim", "manifolds", "learning", "index")
PRINTED = ("search",)


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".bench")
    folder.mkdir(exist_ok=True)
    failed = []
    for name in (*WITH_JSON, *PRINTED):
        print(f"== {name}", flush=True)
        json_options = ["--json", str(folder / f"{name}.json")] if name in WITH_JSON else []
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *json_options], check=False).returncode:
            failed.append(name)
    goals.show(folder)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
