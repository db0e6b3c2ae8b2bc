"""`make bench`: run the benchmarks that need no data sets, one after the other so that they do not disturb each other.

Each runs in its own process. JSON output goes to a folder, `.bench` by default. At the end, the results are compared
with the goals. docs/research/measurements.md lists the benchmarks that need LFW, with their commands.
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
