"""Test the API against its OpenAPI document with schemathesis, by a key of every role.

make contract EXAMPLES=20
python -m tests.contract --schemathesis .venv-contract/bin/schemathesis --examples 1 --keys reader

schemathesis stands in an environment of its own (`requirements.txt`): as a plugin of pytest it would be loaded for
every test. A service with a small gallery is started for each key. Ends with status 1 if schemathesis finds anything.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.config import Settings
from app.db import examples
from app.db.session import writing
from app.db.tables import Job, now
from app.queue.messages import ImportArchive
from app.resources import Resources
from tests.gallery import enrol
from tests.service import Service, run_service

FOLDER = Path(__file__).parent
CONFIGURATION, HOOKS = FOLDER / "schemathesis.toml", FOLDER / "schemathesis_hooks.py"
COLLECTION = examples.COLLECTION
KEYS: dict[str, tuple[str, ...]] = {
    "reader": ("reader",),
    "operator": ("operator",),
    "admin": ("admin",),
    "bound": ("admin", COLLECTION),
}
"""Name of a run -> the role and the collections of its key."""
SETTINGS: dict[str, Any] = {"poll_seconds": 0.05, "workers": 1, "max_wrong_keys_per_minute": 0}
"""schemathesis sends more wrong keys than a service takes by default, and expects 401 each time."""
PHASES = "examples,coverage,fuzzing"
REQUEST_SECONDS = 120
"""A request may take long on a crowded machine; how fast the service is, others measure."""


@dataclass(frozen=True)
class ContractRun:
    """What came of a run of schemathesis.

    operations, selected: how many operations were tested, and how many should have been; cases: how many requests were
    made up; findings: what schemathesis has printed if it found anything
    """

    key: str
    operations: int
    selected: int
    cases: int
    seconds: float
    findings: str

    @property
    def is_clean(self) -> bool:
        """Whether every operation was tested, and nothing was found."""
        return not self.findings and self.operations == self.selected > 0


def run_schemathesis(service: Service, program: Path, name: str, phases: str, example_count: int) -> ContractRun:
    """Run schemathesis with a key, on all operations."""
    header = "Authorization: " + service.key(*KEYS[name])["Authorization"]
    service.client.get("/openapi.json").raise_for_status()  # built now; schemathesis waits ten seconds at most
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report_file = Path(folder) / "report.json"
        command = [str(program.absolute()), "--config-file", str(CONFIGURATION), "run", f"{service.url}/openapi.json"]
        command += [
            "--header",
            header,
            "--phases",
            phases,
            "--checks",
            "all",
            "--continue-on-failure",
            "--workers",
            "1",
        ]
        command += ["--max-examples", str(example_count), "--warnings", "off", "--no-color"]
        command += ["--request-timeout", str(REQUEST_SECONDS), "--max-response-time", str(REQUEST_SECONDS)]
        command += ["--report", "json", "--report-json-path", str(report_file)]
        env = os.environ | {"SCHEMATHESIS_HOOKS": str(HOOKS)}
        ended = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
        report: dict[str, Any] = json.loads(report_file.read_text()) if report_file.exists() else {}
    operations = report.get("operations") or {"tested": 0, "selected": 0}
    return ContractRun(
        name,
        operations["tested"],
        operations["selected"],
        report["test_cases"]["generated"] if report else 0,
        time.monotonic() - started,
        ended.stdout + ended.stderr if ended.returncode else "",
    )


def enrol_gallery(resources: Resources) -> None:
    """Enrol three people, and store an ended job under the id that the examples of the document name."""
    enrol(resources, COLLECTION, range(3), shots=2)
    message, result = ImportArchive(collection=COLLECTION, path=""), {"enrolled": 0, "refused": 0, "seconds": 0.0}
    job = Job(id=examples.JOB, kind=message.kind, body=message.model_dump(), result=result)
    job.state, job.started_at, job.finished_at = "succeeded", now(), now()
    with writing(resources.database) as session:
        session.add(job)


def main() -> int:
    """Run schemathesis with each key, print a table, and return the status of the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemathesis", type=Path, required=True, help="the program")
    parser.add_argument("--examples", type=int, default=20, help="most cases of the fuzzing phase for each operation")
    parser.add_argument("--keys", nargs="+", choices=KEYS, default=list(KEYS))
    parser.add_argument("--phases", default=PHASES)
    arguments = parser.parse_args()
    for logger in ("likeness", "uvicorn.error"):  # refusals are logged as warnings
        logging.getLogger(logger).setLevel(logging.ERROR)
    runs = []
    for name in arguments.keys:
        with tempfile.TemporaryDirectory() as home:
            settings = Settings(home=Path(home) / "home", default_recogniser="lbp", **SETTINGS)
            with run_service(settings) as service:
                enrol_gallery(service.resources)
                run = run_schemathesis(service, arguments.schemathesis, name, arguments.phases, arguments.examples)
        print(run.findings, end="")
        runs.append(run)
    print(f"{'key':10} {'operations':>12} {'requests':>9} {'seconds':>8}  findings")
    for run in runs:
        tested = f"{run.operations} of {run.selected}"
        print(f"{run.key:10} {tested:>12} {run.cases:9,} {run.seconds:8.1f}  {'none' if run.is_clean else 'see above'}")
    return 0 if all(run.is_clean for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
