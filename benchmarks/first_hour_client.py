"""The actions of a user, over HTTP and with the command `likeness`: import, wait, search, switch."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.first_hour_photos import Draw, Photo

COLLECTION = "first-hour"
PATH = f"/v1/collections/{COLLECTION}"
SEARCH_THREADS = 4
CALIBRATION_SECONDS = 300
CALIBRATED_SHARE = 0.9
"""The service recalibrates when the gallery has changed by a tenth."""


@dataclass(frozen=True)
class SearchOutcome:
    """The outcome of a search. no_face: refused, because no face was found in the photo; person: whom it was for"""

    person: str
    first: str | None = None
    decision: str | None = None
    named: str | None = None
    no_face: bool = False
    milliseconds: float = 0.0


def import_gallery(client: httpx.Client, archive: Path) -> dict[str, Any]:
    """Create the collection and import the archive; return counts, and the seconds until all photos can be searched."""
    client.put(PATH, json={}).raise_for_status()
    if face_count(client):
        return {}
    began = time.perf_counter()
    with archive.open("rb") as body:
        answer = client.post(f"{PATH}:import", content=body, headers={"Content-Type": "application/x-tar"})
    job = wait_for_job(client, answer.raise_for_status().headers["Location"])
    return {"seconds": round(time.perf_counter() - began, 1), **job["progress"]}


def face_count(client: httpx.Client) -> int:
    return int(client.get(PATH).raise_for_status().json()["face_count"])


def wait_for_job(client: httpx.Client, location: str) -> Any:
    """Wait for a job, and return it. Raises RuntimeError if it fails."""
    while not (job := client.get(location).raise_for_status().json())["finished_at"]:
        time.sleep(0.2)
    if job["state"] != "succeeded":
        raise RuntimeError(f"job {location}: {job['state']}: {job['problem']}")
    return job


def wait_for_calibration(client: httpx.Client) -> dict[str, Any]:
    """Wait at most five minutes until the champion is calibrated on the whole gallery; return the deployment."""
    until = time.monotonic() + CALIBRATION_SECONDS
    faces = face_count(client)
    while True:
        deployment: dict[str, Any] = client.get(f"{PATH}/deployments/identity").raise_for_status().json()
        measured = deployment["measurements"].get(deployment["champion"], {}).get("faces", 0)
        if measured >= CALIBRATED_SHARE * faces or time.monotonic() > until:
            return deployment
        time.sleep(0.5)


def search_all(client: httpx.Client, photos: Iterable[Photo]) -> list[SearchOutcome]:
    """Search for each photo with default parameters, several at a time."""
    with ThreadPoolExecutor(SEARCH_THREADS) as pool:
        return list(pool.map(lambda photo: search(client, photo), photos))


def search(client: httpx.Client, photo: Photo) -> SearchOutcome:
    began = time.perf_counter()
    answer = client.post(f"{PATH}/search", files={"file": ("photo.jpg", photo.data)})
    spent = 1000 * (time.perf_counter() - began)
    if answer.status_code == 422 and answer.json().get("code") == "NoFace":
        return SearchOutcome(photo.person, no_face=True, milliseconds=spent)
    face = answer.raise_for_status().json()["faces"][0]
    first = next((m["subject"]["external_id"] for m in face["matches"] if m["subject"]), None)
    named = face["subject"]["external_id"] if face["subject"] else None
    return SearchOutcome(photo.person, first, face["decision"], named, milliseconds=spent)


def measure(client: httpx.Client, draw: Draw) -> dict[str, Any]:
    """Measure the rates (0 to 1) of all searches of a draw with the current model, and its threshold."""
    deployment = wait_for_calibration(client)
    queries = search_all(client, draw.queries)
    groups = {"lfw": search_all(client, draw.lfw_strangers), "distractors": search_all(client, draw.distractors)}
    answer = client.post(f"{PATH}/search", files={"file": ("photo.jpg", draw.gallery[0].data)}).raise_for_status()
    strangers = [outcome for group in groups.values() for outcome in group]
    return {
        "faces": face_count(client),
        "model": deployment["champion"],
        "right_first": rate(q.first == q.person for q in queries),
        "named_rightly": rate(q.decision == "match" and q.named == q.person for q in queries),
        "named_wrongly": rate(q.decision == "match" and q.named != q.person for q in queries),
        "possible": rate(q.decision == "possible" for q in queries),
        "strangers_named": rate(s.decision == "match" for s in strangers),
        "strangers_possible": rate(s.decision == "possible" for s in strangers),
        **{f"strangers_named_{name}": rate(s.decision == "match" for s in group) for name, group in groups.items()},
        "without_a_face": sum(o.no_face for o in queries + strangers),
        "undecided": rate(o.decision is None and not o.no_face for o in queries + strangers),
        "search_ms_median": round(float(np.median([o.milliseconds for o in queries])), 1),
        "threshold": answer.json()["threshold"],
    }


def rate(truths: Iterable[bool]) -> float:
    values = list(truths)
    return sum(values) / len(values) if values else float("nan")


def run_likeness(client: httpx.Client, home: Path, *arguments: str) -> str:
    """Run a command with the service's home, address and key in its environment, and return its output.

    Raises RuntimeError with the output if it fails.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("LIKENESS_")}
    env |= {
        "LIKENESS_HOME": str(home),
        "LIKENESS_URL": str(client.base_url).rstrip("/"),
        "LIKENESS_KEY": client.headers["x-api-key"],
    }
    command = [sys.executable, "-m", "app.cli", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"likeness {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
