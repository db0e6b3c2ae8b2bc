"""Measure the first hour of a new user, over HTTP and the command line only: who is found and named, rightly or not.

    python -m benchmarks.first_hour --data DATA [--seeds 5] [--large-seeds 1] [--quick] [--clone]

For each seed, 500 people of LFW (three photos or more; at most 20 enrolled each) are imported as one tar file into a
new service with default settings. It is then searched with 300 other photos of these people, and with 1,100 strangers:
100 other people of LFW and 1,000 distractors. Then an ONNX recogniser is added and used on the same gallery, and the
same photos are imported into a service without weights (LBP). `--large-seeds` repeats this with all people of LFW
enrolled except the strangers. `--clone` also clones this checkout, follows the README in it, and measures the time.

Finished phases are stored in WORK and not measured again, so an interrupted run can be continued. People are numbers in
the service, and the report only contains rates.
"""

import argparse
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.cli.private_service import run_service
from benchmarks import first_hour_table, first_hour_user
from benchmarks.first_hour_client import COLLECTION, import_gallery, measure, run_likeness, wait_for_calibration
from benchmarks.first_hour_photos import FULL, QUICK, Draw, PhotoSets, Size, write_tar

ONNX_FILE = "models/mobilefacenet_112_128d.onnx"
RECOGNISER = "mobilefacenet"


def main() -> None:
    options = parse_options()
    run = Run(options.data, options.work, QUICK if options.quick else FULL, options.onnx)
    seeds = 1 if options.quick else options.seeds
    for seed in range(seeds):
        run.measure_gallery(seed)
        run.measure_without_weights(seed)
    for seed in range(0 if options.quick else options.large_seeds):
        run.measure_gallery(seed, everybody=True)
    if options.clone:
        run.once("user", lambda: first_hour_user.follow_readme(options.data, options.work / "clone"))
    first_hour_table.show(run.results, run.size, options.json, options.markdown)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with LFW's archives and the distractors")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--large-seeds", type=int, default=1, help="seeds that are also run with all of LFW enrolled")
    parser.add_argument("--quick", action="store_true", help="one small gallery, to check that everything works")
    parser.add_argument("--clone", action="store_true", help="follow the README in a clone, and measure the time")
    parser.add_argument("--onnx", type=Path, help=f"recogniser to switch to; default DATA/{ONNX_FILE}")
    parser.add_argument("--work", type=Path, default=Path(".likeness/first-hour"))
    parser.add_argument("--json", type=Path, help="write every phase of every seed, and the table")
    parser.add_argument("--markdown", type=Path, help="write the table")
    options = parser.parse_args()
    options.onnx = options.onnx or options.data / ONNX_FILE
    if options.quick:
        options.work = options.work / "quick"
    return options


@dataclass
class Run:
    """The phases and their results, stored in `work/results.json` after each phase."""

    data: Path
    work: Path
    size: Size
    onnx: Path

    def __post_init__(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        self._file = self.work / "results.json"
        self.results: dict[str, Any] = json.loads(self._file.read_text()) if self._file.exists() else {}
        self._photos: PhotoSets | None = None

    def once(self, phase: str, work: Callable[[], Any]) -> Any:
        """Return the result of a phase, measured now or by an earlier run."""
        if phase not in self.results:
            print(f"{phase} ...", flush=True)
            self.results[phase] = work()
            self._file.write_text(json.dumps(self.results, indent=1))
            print(f"{phase}: {summarise(self.results[phase])}", flush=True)
        return self.results[phase]

    def measure_gallery(self, seed: int, *, everybody: bool = False) -> None:
        """Run two phases on one service: as installed, and after a switch to the ONNX file, if there is one."""
        name = f"{'large' if everybody else 'seed'}-{seed}"
        phases = [f"{name}/default"] + ([f"{name}/onnx"] if self.onnx.is_file() else [])
        if all(phase in self.results for phase in phases):
            return
        home, draw = self.work / name, self.draw(seed, everybody=everybody)
        with run_service(home) as client:
            imported = import_gallery(client, self._archive(draw, home))
            self.once(f"{name}/default", lambda: {"import": imported, **measure(client, draw)})
            if self.onnx.is_file():
                self.once(f"{name}/onnx", lambda: self._switch(client, home, draw))
        shutil.rmtree(home, ignore_errors=True)

    def measure_without_weights(self, seed: int) -> None:
        """Run one phase on a service that only has LBP."""
        phase = f"seed-{seed}/lbp"
        if phase in self.results:
            return
        home, draw = self.work / f"seed-{seed}-lbp", self.draw(seed)
        with run_service(home, default_recogniser="lbp") as client:
            imported = import_gallery(client, self._archive(draw, home))
            self.once(phase, lambda: {"import": imported, **measure(client, draw)})
        shutil.rmtree(home, ignore_errors=True)

    def draw(self, seed: int, *, everybody: bool = False) -> Draw:
        if self._photos is None:
            self._photos = PhotoSets(self.data)
        return self._photos.draw(seed, self.size, everybody=everybody)

    def _archive(self, draw: Draw, home: Path) -> Path:
        path = home / "photos.tar"
        if not path.exists():
            write_tar(draw.gallery, path)
        return path

    def _switch(self, client: httpx.Client, home: Path, draw: Draw) -> dict[str, Any]:
        """Switch to an ONNX file with as few commands as possible; then repeat the searches."""
        before = wait_for_calibration(client)["champion"]
        command = ["recognisers", "add", str(self.onnx.resolve()), "--name", RECOGNISER, "--yes"]
        run_likeness(client, home, *command, "--collection", COLLECTION)
        measured = measure(client, draw)
        if measured["model"] == before:
            raise RuntimeError("the commands succeeded, but the model that serves is the one from before")
        return {"commands": [["likeness", *command, "--collection", COLLECTION]], **measured}


def summarise(result: dict[str, Any]) -> str:
    """Summarise a phase in one line."""
    rates = ("right_first", "named_rightly", "strangers_named")
    shown = [f"{name.replace('_', ' ')} {100 * result[name]:.1f} %" for name in rates if name in result]
    return ", ".join([f"{result['faces']:,} faces", *shown]) if shown else json.dumps(result)


if __name__ == "__main__":
    main()
