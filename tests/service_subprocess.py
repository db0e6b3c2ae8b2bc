"""Run `likeness serve` as an operator does, kill its processes, and check that nothing was lost or repeated."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import psycopg

from app.access import keys
from app.config import Settings
from app.db.session import close_database, open_database, writing
from app.storage.blob_store import Blobs
from tests.databases import migrate

LIKENESS_COMMAND = [sys.executable, "-m", "app.cli"]
ROOT = Path(__file__).resolve().parents[1]
POLL_SECONDS = 0.1
ORPHAN_SECONDS = 30
"""How long processes may outlive their supervisor on a crowded machine."""
SEARCH_SECONDS = 60.0
JOB_SECONDS = 400.0
"""A training of nine seconds has taken over two minutes on a crowded machine."""
STOP_SECONDS = 20.0
SHOWN_LOG_CHARACTERS = 3000


class ServiceSubprocess:
    """`likeness serve` and its workers, over one home. `client` holds an administrator's key.

    settings: variables of the service, in lower case and without their prefix
    """

    def __init__(self, home: Path, port: int, **settings: str) -> None:
        self.home, self.port = home, port
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("LIKENESS_")} | {
            "LIKENESS_HOME": str(home),
            "LIKENESS_LEASE_SECONDS": "2",
            "LIKENESS_POLL_SECONDS": "0.25",  # at 0.1, idle processes take 4 % of a core
            "LIKENESS_WORKERS": "1",
            "LIKENESS_WPCA_AFTER_FACES": "0",
            "LIKENESS_DEFAULT_RECOGNISER": "lbp",
            "LOKY_MAX_CPU_COUNT": "1",  # the service sees one core, and its trainings use one thread
            "OMP_NUM_THREADS": "1",
        }
        self.env |= {f"LIKENESS_{name.upper()}": value for name, value in settings.items()}
        headers = {"x-api-key": self._create_key()}
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30)
        self.process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except BaseException:
            self._end()
            raise

    def _create_key(self) -> str:
        """Create an administrator's key, and the database if there is none."""
        settings = Settings.from_env(self.env)
        migrate(settings)
        database = open_database(settings.database, settings.home)
        try:
            with writing(database) as session:
                return keys.create_key(session, "admin", "test")[1]
        finally:
            close_database(database)

    def start(self) -> None:
        with (self.home / "log").open("ab") as log:
            command = [*LIKENESS_COMMAND, "serve", "--port", str(self.port)]
            self.process = subprocess.Popen(command, env=self.env, cwd=ROOT, stdout=log, stderr=log)
        self.wait_until_ready()

    def wait_until_ready(self, seconds: float = 90) -> None:
        """Wait until every index of the API holds the faces that are in the tables."""
        assert self.process is not None
        last_answer = ""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                answer = self.client.get("/readyz")
                if answer.status_code == 200:
                    return
                last_answer = answer.text
            except httpx.TransportError as error:
                last_answer = str(error)
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"not ready: {last_answer}\n{self.read_log_end()}")

    def read_log_end(self) -> str:
        return (self.home / "log").read_text()[-SHOWN_LOG_CHARACTERS:]

    def list_processes(self, role: str) -> list[psutil.Process]:
        """The living processes of a role: `supervisor`, `api`, a worker's queue (`default`, `training`), or `all`.

        All are those that parse archives for a worker, too.
        """
        assert self.process is not None
        supervisor = psutil.Process(self.process.pid)
        if role == "supervisor":
            return [supervisor]
        children = [child for child in supervisor.children(recursive=role == "all") if _is_alive(child)]
        return [supervisor, *children] if role == "all" else [c for c in children if _is_of_role(c, role)]

    def kill(self, role: str) -> None:
        """Send SIGKILL to the processes of a role.

        The supervisor starts killed processes again by itself; this method waits for the API to be ready. If the
        supervisor is killed, its processes end, and this method starts the service again.
        """
        assert self.process is not None
        victims = self.list_processes(role)
        orphans = self.list_processes("all")[1:] if role == "supervisor" else []
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGKILL)
        if role in ("supervisor", "all"):
            self.process.wait()
            deadline = time.monotonic() + ORPHAN_SECONDS
            while alive := [orphan for orphan in orphans if _is_alive(orphan)]:
                assert time.monotonic() < deadline, f"processes outlived their supervisor: {alive}"
                time.sleep(POLL_SECONDS / 2)
            self.start()
        elif role == "api":
            self.wait_until_ready()

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not stop within {STOP_SECONDS} s\n{self.read_log_end()}") from None
        finally:
            self._end()

    def _end(self) -> None:
        """Leave neither a process nor a connection, whatever has failed."""
        if self.process is not None:
            self.process.kill()  # its processes end with it
            self.process.wait()
        self.client.close()

    def wait_for_job(self, path: str, seconds: float = JOB_SECONDS) -> dict[str, Any]:
        """Wait until a job has ended, through any restart of the API, and return it.

        path: of the job; empty if the API answered at once and there is no job
        """
        if not path:
            return {"state": "succeeded"}
        deadline, job = time.monotonic() + seconds, None
        while time.monotonic() < deadline:
            try:
                job = self.client.get(path).json()
                if job.get("finished_at"):
                    return dict(job)
            except (httpx.TransportError, json.JSONDecodeError):
                time.sleep(POLL_SECONDS)
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"the job did not end within {seconds} s: {job}\n{self.read_log_end()}")

    def search(self, collection: str, vector: list[float]) -> list[dict[str, Any]]:
        """Search a collection by a vector, again while the service is busy, and return the faces that match."""
        path, params = f"/v1/collections/{collection}/search:by-embedding", {"limit": 4096, "group_by": "face"}
        deadline = time.monotonic() + SEARCH_SECONDS
        while (answer := self.client.post(path, params=params, json={"vector": vector})).status_code in (429, 503):
            assert time.monotonic() < deadline, answer.text
            time.sleep(POLL_SECONDS)
        return list(answer.raise_for_status().json()["faces"][0]["matches"])

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Read rows from the database directly. `?` stands for a value, on PostgreSQL too."""
        if url := self.env.get("LIKENESS_DATABASE_URL"):
            with psycopg.connect(url) as connection:
                return connection.execute(statement.replace("?", "%s"), values).fetchall()
        with closing(sqlite3.connect(self.home / "likeness.sqlite", timeout=20)) as database:
            return database.execute(statement, values).fetchall()

    def execute(self, statement: str) -> None:
        """Change the database directly."""
        if url := self.env.get("LIKENESS_DATABASE_URL"):
            with psycopg.connect(url) as connection:
                connection.execute(statement)
            return
        with closing(sqlite3.connect(self.home / "likeness.sqlite", timeout=20)) as database, database:
            database.execute(statement)


def _is_of_role(process: psutil.Process, role: str) -> bool:
    try:
        title = " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has ended since, and may not have been waited for yet
        return False
    return title.startswith("likeness: api" if role == "api" else f"likeness: worker {role}")


def _is_alive(process: psutil.Process) -> bool:
    """A zombie counts as dead: the process that inherits orphans here may never collect it."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def check_consistency(service: ServiceSubprocess, collection: str) -> None:
    """Check that tables, files and index agree: each face once, with its embedding, its crops and its index entry.

    A face whose subject has refused consent, or has a `retain_until` that has passed, has an entry that nobody sees.
    """
    service.wait_until_ready()
    faces = service.query("select pk, face_id, image_id, number from faces where collection_id = ?", collection)
    [(champion,)] = service.query(
        "select champion from deployments where collection_id = ? and task = 'identity'", collection
    )
    embeddings = service.query(
        "select face_pk, vector from embeddings join faces on pk = face_pk"
        " where collection_id = ? and model_id = ? and task = 'identity' order by face_pk",
        collection,
        champion,
    )
    assert sorted(face[0] for face in faces) == [embedding[0] for embedding in embeddings], (
        "a face without its embedding, or an embedding without its face"
    )
    assert len({(face[2], face[3]) for face in faces}) == len(faces), "a face is stored twice"
    files = {name.rpartition("/")[2] for name in Blobs(service.home / "blobs").names(collection)}
    assert all(image in files and f"{image}-{number}.grey.png" in files for _, _, image, number in faces), (
        "a face without its files"
    )
    hidden = service.query(
        "select face_id from faces join subjects on subjects.pk = subject_pk where faces.collection_id = ?"
        " and (not consent or retain_until <= ?)",
        collection,
        time.time(),
    )
    vectors = dict(embeddings)
    shown = {face[1]: vectors[face[0]] for face in faces if (face[1],) not in hidden}
    if shown:
        _check_index(service, collection, list(shown), list(shown.values()))


def _check_index(service: ServiceSubprocess, collection: str, face_ids: list[str], vectors: list[bytes]) -> None:
    """Check that a search returns every face, at the distances that the stored embeddings have."""
    embeddings = np.stack([np.frombuffer(vector, "<f4") for vector in vectors])
    query = embeddings[len(embeddings) // 2]
    matches = service.search(collection, query.tolist())
    assert sorted(match["face_id"] for match in matches) == sorted(face_ids), "the index holds other faces"
    expected = np.sort(((embeddings - query) ** 2).sum(axis=1))
    distances = [match["distance"] for match in matches]
    assert np.allclose(distances, expected, atol=1e-2), "the index holds other embeddings"
