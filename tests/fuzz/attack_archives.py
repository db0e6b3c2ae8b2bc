"""Send hostile archives to a service that is started for it, and report how their imports end.

python -m tests.fuzz.attack_archives --cases 2000

Ends with status 1 if a request or a job ends in an internal error, if a file or a process stays, or if `/livez` takes
longer than 100 ms in more than one of a thousand requests.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.fuzz.archive_attack import ArchiveAttack, list_leftovers, wait_for_cleanup
from tests.fuzz.attack_server import read_megabytes
from tests.fuzz.livez_watch import watch_livez
from tests.raw_http import find_free_port
from tests.service_subprocess import ServiceSubprocess

MAX_SLOW_SHARE = 0.001
MAX_SHOWN_FAULTS = 20


def attack(service: ServiceSubprocess, seed: int, cases: int, clients: int) -> tuple[Counter[str], list[str]]:
    """Send `cases` archives, each client its share into a collection of its own. Returns outcomes and faults."""

    def run(number: int) -> ArchiveAttack:
        with httpx.Client(base_url=service.client.base_url, headers=service.client.headers, timeout=60) as client:
            attacker = ArchiveAttack(client, seed * 1_000 + number)
            attacker.run(cases // clients)
            return attacker

    with ThreadPoolExecutor(clients) as pool:
        attackers = list(pool.map(run, range(clients)))
    outcomes = sum((attacker.outcomes for attacker in attackers), Counter[str]())
    return outcomes, [fault for attacker in attackers for fault in attacker.faults]


def find_leftovers(service: ServiceSubprocess, earlier: set[str]) -> list[str]:
    """List the files and the parsers that the service has left behind. earlier: files from before the attack"""
    image_ids = (row[0] for row in service.query("select distinct image_id from faces"))
    files = set(wait_for_cleanup(service.home, image_ids)) - earlier
    parsers = [child for worker in service.list_processes("default") for child in worker.children(recursive=True)]
    return [f"left on the disk: {name}" for name in sorted(files)] + [f"left running: {parser}" for parser in parsers]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="likeness-attack-") as folder:
        home = Path(folder)
        (home / "temporary").mkdir()
        os.environ["TMPDIR"] = str(home / "temporary")  # of the service
        service = ServiceSubprocess(home, find_free_port())
        try:
            [api] = service.list_processes("api")
            earlier = set(list_leftovers(home, set()))
            started = time.perf_counter()
            with watch_livez(str(service.client.base_url)) as livez:
                outcomes, faults = attack(service, arguments.seed, arguments.cases, arguments.clients)
            seconds = time.perf_counter() - started
            faults += find_leftovers(service, earlier)
            peak = read_megabytes(api.pid, "VmHWM")
        finally:
            service.stop()
    print(f"{outcomes.total():,} archives by {arguments.clients} clients in {seconds:.0f} s, seed {arguments.seed}")
    print(f"outcomes: {dict(sorted(outcomes.items()))}")
    print(*(f"/livez of the {server}: {times}" for server, times in livez.items()), sep="\n")
    print(f"API process: {peak} MB at its peak; load of the machine: {os.getloadavg()[0]:.1f}")
    print(f"{len(faults)} faults", *faults[:MAX_SHOWN_FAULTS], sep="\n")
    return 0 if not faults and livez["service"].slow_share <= MAX_SLOW_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
