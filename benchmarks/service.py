"""`make bench-service`: measure searches, imports and starts of a service, and write the tables as Markdown.

    python -m benchmarks.service [FOLDER] [--small]

The benchmarks run one after the other, each with its references in the same run. The folder, `.bench` by default, gets
their JSON and `service.md`. `--small` takes a minute and only shows that they run.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.service_load import LEAST, ONE, TWO

SIZES = {
    "load": ["--faces", "13000", "100000", "1000000"],
    "import": [["--vectors", "100000"], ["--vectors", "1000000"]],
    "start": ["--faces", "13000"],
}
SMALL_SIZES = {
    "load": ["--faces", "400", "--rounds", "1", "--seconds", "0.2"],
    "import": [["--vectors", "2000"]],
    "start": ["--faces", "400", "--rounds", "1"],
}
LOAD_COLUMNS = ("searches a second", "p50, ms", "p99, ms", "processor ms")
IMPORT_COLUMNS = {
    "faiss_seconds": "FAISS, s",
    "import_seconds": "import, s",
    "ratio": "ratio",
    "import_processor_ratio": "of processor time",
    "ratio_with_cells": "until cells",
    "disk_ratio": "disk / raw bytes",
}


def format_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def format_loads(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of what `benchmarks.service_load` measured."""
    cells = [
        [row["faces"], row["clients"], name, *row[name], _format_ratios(row, name)]
        for row in rows
        for name in (ONE, TWO, LEAST)
    ]
    return format_table(("faces", "clients", "program", *LOAD_COLUMNS, "ratio of rates: median, least, most"), cells)


def _format_ratios(row: dict[str, Any], name: str) -> str:
    return "; ".join(f"{key}: {value}" for key, value in row.items() if key.startswith(f"{name} / "))


def format_imports(measured: Sequence[dict[str, Any]]) -> str:
    """Return the table of what `benchmarks.import_embeddings` measured."""
    cells = [[one["vectors"], *(f"{one[name]:.2f}" for name in IMPORT_COLUMNS)] for one in measured]
    return format_table(("vectors", *IMPORT_COLUMNS.values()), cells)


def run(name: str, *options: str) -> str:
    """Run a benchmark and return what it printed. Raises CalledProcessError."""
    print(f"== {name} {' '.join(options)}", flush=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(printed, flush=True)
    return printed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(".bench"))
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    sizes: dict[str, Any] = SMALL_SIZES if args.small else SIZES
    args.folder.mkdir(exist_ok=True)
    loads, imports = args.folder / "service-load.json", []
    run("service_load", *sizes["load"], "--json", str(loads))
    for i, options in enumerate(sizes["import"]):
        file = args.folder / f"import-{i}.json"
        run("import_embeddings", *options, "--json", str(file))
        imports.append(json.loads(file.read_text()))
    starts = run("ready_again", *sizes["start"])
    tables = format_loads(json.loads(loads.read_text())), format_imports(imports), f"```\n{starts}```\n"
    (args.folder / "service.md").write_text("\n".join(tables))
    print((args.folder / "service.md").read_text())


if __name__ == "__main__":
    main()
