"""A service with people, and requests, jobs and commands that are under way when its processes are killed."""

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from typer.testing import CliRunner, Result

from app.cli.main import app as cli
from tests.service_subprocess import LIKENESS_COMMAND, ROOT, ServiceSubprocess

COLLECTION = "chaos"
REQUEST_SECONDS = 180.0
"""How long a request is repeated: a service takes half a minute to start on a crowded machine."""
JOB_SECONDS = 600.0
"""The worker of the trainings runs at nice 15: among many other processes it hardly gets a core."""
RETRY_SECONDS = 0.1
PARSER_SECONDS = 5.0
POLL_SECONDS = 0.005
PARSER = "parser_process"
ON_DEFAULT = ("default", "default", "default", "api", "supervisor", "all")
"""What is killed during a job of the queue `default`, each as often as it is named; a worker is named by its queue."""
ON_TRAINING = ("training", "training", "training", "api", "supervisor", "all")

CheckJob = Callable[[dict[str, Any]], None]


@dataclass
class Work:
    """Work that was started.

    check: of the ended job and of what it did
    job: path of the job; empty if there is none
    victims: what may be killed; `command` is the command, `parser` a process that parses an archive
    request: what is not answered yet, and is repeated until it is
    """

    check: CheckJob
    job: str = ""
    victims: tuple[str, ...] = ON_DEFAULT
    command: subprocess.Popen[bytes] | None = None
    request: Future[httpx.Response] | None = None


@dataclass
class Workload:
    """What the trials have done to a service so far.

    folder: for snapshots, outside of the home
    people: how many were drawn; models: trained ones that are published without torch, whose import takes a second
    separated: pairs of faces that are labelled "not the same"; erased: how many erasures were requested
    sent, accepted: audited action -> how many requests were sent, and how many of them were answered 2xx
    """

    service: ServiceSubprocess
    rng: random.Random
    folder: Path
    people: int = 0
    models: list[str] = field(default_factory=list)
    separated: list[tuple[str, str]] = field(default_factory=list)
    erased: int = 0
    restored: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, "request")
        self.sent["collection.create"] = self.accepted["collection.create"] = 1  # by the fixture

    def send(self, action: str, method: str, path: str, **request: Any) -> httpx.Response:
        """Send a request that the audit log records under this action, again and again until it is accepted."""

        def send_once() -> httpx.Response:
            self.sent[action] += 1
            return self.service.client.request(method, path, **request)

        answer = send_until_accepted(send_once)
        self.accepted[action] += answer.is_success
        return answer

    def begin_request(self, action: str, method: str, path: str) -> Future[httpx.Response]:
        """Send a request in a thread, so that processes can be killed while it is answered. It may be repeated."""
        return self._threads.submit(self.send, action, method, path)

    def begin_command(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `likeness` with these arguments on the machine of the service."""
        with (self.service.home / "log").open("ab") as log:
            command = [*LIKENESS_COMMAND, *arguments]
            return subprocess.Popen(command, env=self.service.env, cwd=ROOT, stdout=log, stderr=log)

    def run_command(self, *arguments: str) -> Result:
        """Run `likeness` with these arguments in this process, which is faster."""
        env = {name: None for name in os.environ if name.startswith("LIKENESS_")}
        env |= {name: value for name, value in self.service.env.items() if name.startswith("LIKENESS_")}
        return CliRunner().invoke(cli, list(arguments), env=env)

    def kill(self, work: Work, victim: str) -> bool:
        """Kill what the trial has drawn. Returns False if it had ended, or no parser could be caught within seconds."""
        if victim == "parser":
            return kill_parser(self.service)
        if victim == "command":
            assert work.command is not None
            is_running = work.command.poll() is None
            work.command.kill()
            return is_running
        self.service.kill(victim)
        return True

    def finish(self, work: Work) -> None:
        """Wait until everything that was started has ended, and check it."""
        if work.command is not None:
            work.command.wait(REQUEST_SECONDS)
        if work.request is not None:
            work.request.result(REQUEST_SECONDS)
        work.check(self.service.wait_for_job(work.job, JOB_SECONDS))

    def count(self, statement: str, *values: Any) -> int:
        return int(self.service.query(statement, *values)[0][0])

    def count_faces(self) -> int:
        return self.count("select count(*) from faces where collection_id = ?", COLLECTION)


def send_until_accepted(send: Callable[[], httpx.Response]) -> httpx.Response:
    """Send a request again while it is cut off or answered 503. A deletion may find that it was done before."""
    deadline = time.monotonic() + REQUEST_SECONDS
    while time.monotonic() < deadline:
        try:
            answer = send()
            if answer.status_code != 503:
                accepted = {200, 201, 202} | ({204, 404} if answer.request.method == "DELETE" else set())
                assert answer.status_code in accepted, answer.text
                return answer
        except httpx.TransportError:
            time.sleep(RETRY_SECONDS / 2)
        time.sleep(RETRY_SECONDS)
    raise AssertionError("the request was never accepted")


def read_job_path(answer: httpx.Response) -> str:
    """Return the path of the job that an answer names; empty if there is none."""
    return str(answer.headers.get("Location", ""))


def kill_parser(service: ServiceSubprocess) -> bool:
    """Kill the first process that parses an archive. Returns whether one was caught."""
    deadline = time.monotonic() + PARSER_SECONDS
    workers = service.list_processes("default")
    while time.monotonic() < deadline:
        try:
            for parser in (child for worker in workers for child in worker.children()):
                if any(PARSER in argument for argument in parser.cmdline()):
                    parser.kill()
                    return True
        except psutil.NoSuchProcess:
            continue
        time.sleep(POLL_SECONDS)
    return False
