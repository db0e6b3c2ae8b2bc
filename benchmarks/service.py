"""`make bench-service`: measure a service beside its references, and write the tables as Markdown and JSON.

    python -m benchmarks.service [FOLDER] [--small] [--only load engines ...] [--photos ARCHIVE ...]

The benchmarks run one after the other, each with its references in the same run and each also by itself: their names
are those of `STEPS`. The folder, `.bench` by default, gets the JSON of each, all of it in `service.json`, and
`service.md`: what is measured against its goal, and then the figures of each benchmark. One that fails is listed as
failed, and the others go on. Milvus and pgvector are measured where `make engines` has installed them. `--photos`
imports these archives, too. `--small` takes a minute and only shows that the benchmarks run.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.service_goals import list_goals

Results = dict[str, list[dict[str, Any]]]
"""Name of a step -> the rows that its benchmark measured."""


@dataclass(frozen=True)
class Step:
    """A benchmark of the run. runs: the options of each time it is started; small: those of `--small`"""

    title: str
    module: str
    runs: Sequence[Sequence[str]]
    small: Sequence[str]


STEPS = {
    "load": Step(
        "Searches by vector, against the least program and with two processes",
        "service_load",
        [["--faces", "13000", "100000", "1000000"]],
        ["--faces", "400", "--rounds", "1", "--seconds", "0.2"],
    ),
    "engines": Step(
        "Searches by vector at equal recall, against other engines",
        "engines",
        [["--faces", "100000"], ["--faces", "1000000"]],
        ["--faces", "400", "--rounds", "1", "--seconds", "0.2", "--engines"],
    ),
    "vectors": Step(
        "Import of vectors",
        "import_embeddings",
        [["--vectors", "100000"], ["--vectors", "1000000"]],
        ["--vectors", "2000"],
    ),
    "photos": Step(
        "Import of photos",
        "importing",
        [["--drawn", "40000", "--recogniser", "lbp"]],
        ["--drawn", "40", "--recogniser", "lbp"],
    ),
    "starts": Step(
        "Start to ready, and memory",
        "ready_again",
        [["--faces", "13000"], ["--faces", "1000000"]],
        ["--faces", "400", "--rounds", "1", "--idle", "0"],
    ),
    "reembedding": Step(
        "Embedding stored descriptors anew", "reembedding", [[]], ["--faces", "200", "--dim", "64", "--rounds", "1"]
    ),
    "swap": Step(
        "Swap under load", "swap", [["--faces", "1000000"]], ["--faces", "400", "--rate", "20", "--seconds", "1"]
    ),
}


def format_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def format_rows(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows of a benchmark as a table, a line for each figure."""
    lines = [(number, name, _format_value(value)) for number, row in enumerate(rows, 1) for name, value in row.items()]
    return format_table(("row", "figure", "value"), lines)


def _format_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def format_report(results: Results, failed: Sequence[str]) -> str:
    """Return all tables: first the goals, last what failed."""
    goals = [(goal.what, goal.value, goal.limit, goal.verdict) for goal in list_goals(results)]
    parts = [format_table(("what", "measured", "goal", ""), goals)]
    parts += [f"## {STEPS[name].title}\n\n{format_rows(rows)}" for name, rows in results.items() if rows]
    parts += [f"{name} failed\n" for name in failed]
    return "\n".join(parts)


def run(module: str, options: Sequence[str], file: Path) -> list[dict[str, Any]]:
    """Run a benchmark, which prints what it measures and writes it to a file. Raises CalledProcessError."""
    print(f"== {module} {' '.join(options)}", flush=True)
    subprocess.run([sys.executable, "-m", f"benchmarks.{module}", *options, "--json", str(file)], check=True)
    rows = json.loads(file.read_text())
    return rows if isinstance(rows, list) else [rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(".bench"))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--photos", nargs="+", default=[], help="archives of photos to import, too")
    args = parser.parse_args()
    args.folder.mkdir(exist_ok=True)
    results: Results = {name: [] for name in args.only}
    failed: list[str] = []
    for name in args.only:
        step = STEPS[name]
        runs = [step.small] if args.small else list(step.runs)
        runs += [args.photos] if name == "photos" and args.photos else []
        for number, options in enumerate(runs):
            try:
                results[name] += run(step.module, options, args.folder / f"{name}-{number}.json")
            except subprocess.CalledProcessError:
                failed.append(f"{step.module} {' '.join(options)}")
    (args.folder / "service.json").write_text(json.dumps(results, indent=1))
    (args.folder / "service.md").write_text(format_report(results, failed))
    print((args.folder / "service.md").read_text())
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
