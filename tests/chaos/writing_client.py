"""A client that writes until the service is killed, and knows of each of its writes whether it was answered."""

import random
import threading
import time
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field

import httpx

from tests.chaos.client_record import ClientRecord
from tests.chaos.client_writes import Write, WriteDrawer
from tests.chaos.workload import RETRY_SECONDS

REQUEST_SECONDS = 60.0
ACCEPTED = 202
BUSY = (429, 503)
"""Statuses of a refusal that changes nothing: the request may be sent again."""


@dataclass
class WritingClient:
    """A client with its own connection, thread and record. Nobody else changes what it has written.

    cut_off: the write that was sent and not answered; None: there is none
    replays: answered writes with an Idempotency-Key, each with its answer
    sent, accepted: action -> how many requests, and how many of them were answered 2xx; refused: by status
    failure: an answer that should not be
    """

    client: httpx.Client
    number: int
    rng: random.Random
    record: ClientRecord = field(default_factory=ClientRecord)
    cut_off: Write | None = None
    replays: list[tuple[Write, httpx.Response]] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    failure: str = ""

    def __post_init__(self) -> None:
        self.drawer = WriteDrawer(self.record, self.rng, self.number)
        self._is_stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, trial: int, models: tuple[str, ...]) -> None:
        """Write in a thread. models: that may be published, by this client alone"""
        self.drawer.prefix, self.drawer.models = f"t{trial:03}c{self.number}", models
        self.record.moves.clear()
        self.replays.clear()
        self._is_stopping.clear()
        self._thread = threading.Thread(target=self._write_until_cut_off)
        self._thread.start()

    def stop(self) -> None:
        """Wait for the thread, which ends at the latest when its present request is answered."""
        assert self._thread is not None
        self._is_stopping.set()
        self._thread.join()
        assert not self.failure, self.failure

    def _write_until_cut_off(self) -> None:
        while not self._is_stopping.is_set() and not self.failure:
            write = self.drawer.draw()
            try:
                answer = self.send(write)
            except httpx.ConnectError:  # nothing was sent
                return
            except httpx.TransportError:
                self.cut_off = write
                return
            if self.drawer.models and not self._wait_for_job(answer):
                return  # a publication must have moved the pointers before it is rolled back

    def send(self, write: Write) -> httpx.Response | None:
        """Send a write until it is carried out, and note it. Returns None if it is not.

        Raises httpx.TransportError.
        """
        while True:
            self.sent[write.action] += 1
            answer = self.client.request(write.method, write.path, **write.request)
            if answer.is_success:
                write.note(self.record, answer)
                self.accepted[write.action] += 1
                if write.is_keyed:
                    self.replays.append((write, answer))
                return answer
            self.refused[answer.status_code] += 1
            if answer.status_code not in BUSY:
                self.failure = f"{write}: {answer.status_code} {answer.text}"
                return None
            if self._is_stopping.wait(RETRY_SECONDS):
                return None

    def repeat(self, write: Write) -> httpx.Response:
        """Send a write once more, and again while the service is busy, and return the answer, whatever it is."""
        while True:
            self.sent[write.action] += 1
            answer = self.client.request(write.method, write.path, **write.request)
            if answer.status_code not in BUSY:
                return answer
            time.sleep(RETRY_SECONDS)

    def _wait_for_job(self, answer: httpx.Response | None) -> bool:
        """Wait for the job that an answer names. Returns False if it had not ended when the service was killed."""
        if answer is None or answer.status_code != ACCEPTED:
            return True
        try:
            while not self._is_stopping.wait(RETRY_SECONDS):
                job = self.client.get(answer.headers["Location"])
                if job.is_success and job.json()["finished_at"]:
                    return True
        except httpx.TransportError:
            return False
        return False

    def foresee(self) -> ClientRecord:
        """Return the record as it is if the write that was cut off was carried out."""
        after = deepcopy(self.record)
        if self.cut_off is not None:
            self.cut_off.note(after, None)
        return after
