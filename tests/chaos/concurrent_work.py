"""Clients that write all at once while every process of the service is killed."""

import logging
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from tests.chaos.client_record import ClientRecord
from tests.chaos.client_writes import VECTOR_BASE, VECTOR_COLLECTION, VECTOR_DIM
from tests.chaos.gallery_work import wait_until_erased
from tests.chaos.held_facts import FIRST_CLIENT, HeldFacts, iterate_rows, read_facts
from tests.chaos.trials import wait_for_jobs_and_entries
from tests.chaos.workload import COLLECTION, RETRY_SECONDS, Work, Workload
from tests.chaos.writing_client import REQUEST_SECONDS, WritingClient
from tests.service_subprocess import ServiceSubprocess

CLIENTS = 6
MAX_REPLAYS = 3
MAX_WRITING_SECONDS = 3.0
NAME_SECONDS = 60.0
log = logging.getLogger("chaos")


@dataclass
class ConcurrentWriters:
    """Clients that write at once, over all trials of one service.

    imports: how many there were before the first trial
    outcomes: (action, what became of it) -> how many of the writes that were cut off
    """

    workload: Workload
    clients: list[WritingClient] = field(default_factory=list)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    trial: int = 0
    imports: int = 0

    def __post_init__(self) -> None:
        client = self.workload.service.client
        external = {"external": {"name": "drawn", "dim": VECTOR_DIM, "metric": "l2"}}
        client.put(VECTOR_BASE, json={"descriptor": external}).raise_for_status()
        self.workload.sent["collection.create"] += 1
        self.workload.accepted["collection.create"] += 1
        for number in range(CLIENTS):
            own = httpx.Client(base_url=client.base_url, headers=client.headers, timeout=REQUEST_SECONDS)
            self.clients.append(WritingClient(own, number, random.Random(self.workload.rng.random())))
        self.imports = self._count_imports()
        self.clients[FIRST_CLIENT].record.trainings = self.workload.count("select count(*) from trainings")

    def start(self, workload: Workload) -> Work:
        """Have all clients write until the service is killed."""
        self.trial += 1
        models = [
            m for (m,) in workload.service.query("select id from models where id = 'lbp-l2' or training_id is not null")
        ]
        for client in self.clients:
            is_first = client.number == FIRST_CLIENT
            if is_first:
                self._read_pointers(client.record)
            client.start(self.trial, tuple(models) if is_first and len(models) > 1 else ())
        time.sleep(workload.rng.random() * MAX_WRITING_SECONDS)
        return Work(self._check, victims=("all",))

    def close(self) -> None:
        """Close the clients, and log what they have done."""
        refused = sum((client.refused for client in self.clients), Counter[int]())
        log.info("%d writes answered 2xx, refusals: %s", self.workload.accepted.total(), dict(refused))
        for (action, outcome), count in sorted(self.outcomes.items()):
            log.info("cut off: %s, %s: %d", action, outcome, count)
        for client in self.clients:
            client.client.close()

    def _read_pointers(self, record: ClientRecord) -> None:
        [(record.champion, record.previous)] = self.workload.service.query(
            "select champion, previous from deployments where collection_id = ?", COLLECTION
        )

    def _check(self, _: dict[str, Any]) -> None:
        """Check that each answered write is there once, and each other one wholly or not at all."""
        for client in self.clients:
            client.stop()
        for client in self.clients:
            self._repeat(client)
        for client in self.clients:
            self.workload.sent += client.sent
            self.workload.accepted += client.accepted
            client.sent.clear()
            client.accepted.clear()
        wait_for_jobs_and_entries(self.workload)
        self._check_jobs()
        held = read_facts(self.workload.service, self.trial)
        for client in self.clients:
            self._compare(client, held)
        imports = sum(client.record.imports for client in self.clients)
        assert self._count_imports() == self.imports + imports, "an import is repeated"
        self.workload.erased = sum(client.record.deletions for client in self.clients)
        wait_until_erased(self.workload)
        self._check_keys()
        for collection in (COLLECTION, VECTOR_COLLECTION):
            self._check_names(collection)

    def _repeat(self, client: WritingClient) -> None:
        """Repeat what has an Idempotency-Key: what was answered is answered alike, and what was cut off is done."""
        for write, answer in client.replays[-MAX_REPLAYS:]:
            check_replay(answer, client.repeat(write))
        if client.cut_off is None or not client.cut_off.is_keyed:
            return
        write, answer = client.cut_off, client.repeat(client.cut_off)
        if answer.is_success:
            client.accepted[write.action] += 1
            write.note(client.record, answer)
        else:
            assert has_code(answer, "SecretNotStored"), (write, answer.status_code, answer.text)
            write.note(client.record, None)
        replayed = answer.headers.get("Idempotent-Replayed") or not answer.is_success
        self.outcomes[write.action, "answered again" if replayed else "carried out when repeated"] += 1
        client.cut_off = None

    def _check_jobs(self) -> None:
        """Check that all jobs have succeeded."""
        failed = self.workload.service.query(
            "select id, kind, state, problem from jobs where state != 'succeeded' and kind != 'sweep'"
        )
        assert failed == [], failed

    def _compare(self, client: WritingClient, held: HeldFacts) -> None:
        """Compare what a client has written with what is held, and continue with what is held."""
        actual, before, after = held.of_client[client.number], client.record, client.foresee()
        if client.cut_off is not None:
            is_done = actual == after.list_facts()
            self.outcomes[client.cut_off.action, "carried out" if is_done else "not carried out"] += 1
            before = after if is_done else before
        expected = before.list_facts()
        assert actual == expected, {
            "client": client.number,
            "cut off": client.cut_off,
            "lost": expected - actual,
            "held besides": actual - expected,
        }
        for photo, face in before.faces.items():
            assert face.face_id in ("", held.face_ids[photo]), "a face has another id than was answered"
            face.face_id = held.face_ids[photo]
        for name, key in before.keys.items():
            assert key.id in ("", held.key_ids[name]), "a key has another id than was answered"
            key.id = held.key_ids[name]
        client.record = client.drawer.record = before
        client.cut_off = None

    def _count_imports(self) -> int:
        return self.workload.count("select count(*) from jobs where kind in ('import', 'import-embeddings')")

    def _check_keys(self) -> None:
        """Check that the keys of this trial are accepted unless they were revoked."""
        for client in self.clients:
            keys = [key for name, key in client.record.keys.items() if name.startswith(client.drawer.prefix)]
            for key in keys:
                answer = client.client.get("/v1/collections", headers={"x-api-key": key.secret}) if key.secret else None
                assert answer is None or answer.status_code == (401 if key.is_revoked else 200), answer.text

    def _check_names(self, collection: str) -> None:
        """Check that a search returns the faces of the tables with their subjects, but for those of refused consent."""
        service, path = self.workload.service, f"/v1/collections/{collection}"
        refused = {s["id"] for s in iterate_rows(service, f"{path}/subjects", "subjects") if s["consent"] is False}
        faces = {face["face_id"]: face["subject"] for face in iterate_rows(service, f"{path}/faces", "faces")}
        expected = {face: subject for face, subject in faces.items() if not (subject and subject["id"] in refused)}
        nameless = {face for face, subject in faces.items() if subject is None}
        vectors = service.query(
            "select vector from embeddings join faces on faces.pk = face_pk join deployments on model_id = champion"
            " and deployments.collection_id = faces.collection_id where faces.collection_id = ? limit 1",
            collection,
        )
        query = [float(number) for [vector] in vectors for number in np.frombuffer(vector, "<f4")]
        until = time.monotonic() + NAME_SECONDS
        while query and (found := find_subjects(service, collection, query, nameless)) != expected:
            wrong = [
                (f, found.get(f), expected.get(f)) for f in {**found, **expected} if found.get(f) != expected.get(f)
            ]
            assert time.monotonic() < until, (collection, wrong)
            time.sleep(RETRY_SECONDS)


def check_replay(answered: httpx.Response, again: httpx.Response) -> None:
    """Check the answer to a repeated request, whose answer may hold a secret or name somebody who was erased since."""
    if not again.is_success:
        assert has_code(again, "SecretNotStored") or has_code(again, "AnswerErased"), again.text
        return
    assert again.headers.get("Idempotent-Replayed") == "true", "an answered request was carried out again"
    assert (again.status_code, again.content) == (answered.status_code, answered.content)


def has_code(answer: httpx.Response, code: str) -> bool:
    """Whether a request was refused with 409 and this code."""
    return answer.status_code == 409 and answer.json()["code"] == code


def find_subjects(
    service: ServiceSubprocess, collection: str, vector: list[float], nameless: set[str]
) -> dict[str, Any]:
    """Return the subject of each face that a search returns.

    nameless: faces without a subject, for which a search names the one whose faces are labelled "the same"
    """
    matches = service.search(collection, vector)
    return {m["face_id"]: None if m["face_id"] in nameless else m["subject"] for m in matches}
