"""The service as its operator starts it, its processes by their parts, and what must hold after one was killed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

LIKENESS = [sys.executable, "-m", "app.cli"]
ROOT = Path(__file__).resolve().parents[1]


class Crew:
    """`likeness serve` in a process group of its own, over one home."""

    def __init__(self, home: Path, port: int, **settings: str) -> None:
        self.home, self.port = home, port
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("LIKENESS_")} | {
            "LIKENESS_HOME": str(home),
            "LIKENESS_LEASE_SECONDS": "2",
            "LIKENESS_POLL_SECONDS": "0.1",
            "LIKENESS_WORKERS": "1",
            "LIKENESS_WPCA_AFTER_FACES": "0",
            "LIKENESS_DEFAULT_RECOGNISER": "lbp",
            "OMP_NUM_THREADS": "1",
        }
        self.env |= {f"LIKENESS_{name.upper()}": value for name, value in settings.items()}
        made = subprocess.run(
            [*LIKENESS, "keys", "create", "--new", "--role", "admin"],
            env=self.env,
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        headers = {"x-api-key": made.stdout.decode().strip()}
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with (self.home / "log").open("ab") as log:
            command = [*LIKENESS, "serve", "--port", str(self.port)]
            self.process = subprocess.Popen(command, env=self.env, cwd=ROOT, stdout=log, stderr=log)
        self.ready()

    def ready(self, seconds: float = 90) -> None:
        """Until every index of the API holds what the tables say."""
        assert self.process is not None
        last = ""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                answer = self.client.get("/readyz")
                if answer.status_code == 200:
                    return
                last = answer.text
            except httpx.TransportError as error:
                last = str(error)
            time.sleep(0.1)
        raise AssertionError(f"not ready: {last}\n{(self.home / 'log').read_text()[-3000:]}")

    def part(self, name: str) -> list[psutil.Process]:
        """The processes of a part: `api`, a queue (`default` or `training`), or `all`."""
        assert self.process is not None
        parent = psutil.Process(self.process.pid)
        if name == "api":
            return [parent]
        children = parent.children()
        children = [c for c in children if c.status() != psutil.STATUS_ZOMBIE]
        return [parent, *children] if name == "all" else [c for c in children if name in c.cmdline()]

    def kill(self, name: str) -> None:
        """SIGKILL; the API (and with it its workers) is started again by hand, workers by the server."""
        assert self.process is not None
        victims, orphans = self.part(name), self.part("all")[1:] if name == "api" else []
        for victim in victims:
            victim.send_signal(signal.SIGKILL)
        if name in ("api", "all"):
            self.process.wait()
            until = time.monotonic() + 20
            while left := [orphan for orphan in orphans if _lives(orphan)]:
                assert time.monotonic() < until, f"workers outlived their server: {left}"
                time.sleep(0.05)
            self.start()

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(20)
        self.client.close()

    def ended(self, path: str, seconds: float = 120) -> dict[str, Any]:
        """The job, once it has ended, through whatever restarts in between."""
        if not path:
            return {"state": "succeeded"}
        until, job = time.monotonic() + seconds, None
        while time.monotonic() < until:
            try:
                job = self.client.get(path).json()
                if job.get("finished_at"):
                    return dict(job)
            except (httpx.TransportError, json.JSONDecodeError):
                time.sleep(0.1)
            time.sleep(0.1)
        raise AssertionError(f"stuck: {job}\n{(self.home / 'log').read_text()[-3000:]}")

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Straight from the tables."""
        with closing(sqlite3.connect(self.home / "likeness.sqlite", timeout=20)) as database:
            return database.execute(query, values).fetchall()


def _lives(process: psutil.Process) -> bool:
    """A zombie is dead: whoever inherits orphans here may never ask for it."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def check(crew: Crew, collection: str) -> None:
    """Rows = vectors = ids: every face has its embedding, its files, and its place in the index; nothing twice."""
    crew.ready()
    faces = crew.rows("select pk, face_id, image_id, number from faces where collection_id = ?", collection)
    [(champion,)] = crew.rows(
        "select champion from deployments where collection_id = ? and task = 'identity'", collection
    )
    stored = crew.rows(
        "select face_pk, vector from embeddings join faces on pk = face_pk"
        " where collection_id = ? and model_id = ? and task = 'identity' order by face_pk",
        collection,
        champion,
    )
    assert sorted(f[0] for f in faces) == [s[0] for s in stored], "a face without its embedding, or the reverse"
    assert len({(f[2], f[3]) for f in faces}) == len(faces), "a face twice"
    blobs = crew.home / "blobs" / f"c-{collection}"
    files = {p.name for p in blobs.rglob("*") if p.is_file()}
    assert all(image in files and f"{image}-{n}.grey.png" in files for _, _, image, n in faces), (
        "a face without its files"
    )
    if not faces:
        return
    vectors = np.stack([np.frombuffer(v, "<f4") for _, v in stored])
    query = vectors[len(vectors) // 2]
    body = crew.client.post(
        f"/v1/collections/{collection}/search:by-embedding",
        params={"limit": 4096, "group_by": "face"},
        json={"vector": query.tolist()},
    ).json()
    found = [m["face_id"] for m in body["faces"][0]["matches"]]
    assert sorted(found) == sorted(f[1] for f in faces), "the index holds other ids than the table"
    exact = np.sort(((vectors - query) ** 2).sum(axis=1))
    assert np.allclose([m["distance"] for m in body["faces"][0]["matches"]], exact, atol=1e-2), "other vectors"
