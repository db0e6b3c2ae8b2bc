"""Processes are started in order, started again when they die, and end with their supervisor."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from app.supervision.slots import compute_delay, describe_status

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start processes of these names under a supervisor: see `supervised_program`."""
    started: list[subprocess.Popen[str]] = []

    def start_program(*names: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.app.supervised_program", str(tmp_path), *names]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start_program
    for process in started:
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def list_pids(folder: Path, name: str) -> set[int]:
    return {int(path.suffix[1:]) for path in folder.glob(f"{name}.*")}


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def stop(process: subprocess.Popen[str]) -> str:
    """Stop a supervisor, and return what it has logged."""
    process.terminate()
    _, log = process.communicate(timeout=30)
    return log


def test_each_process_shows_its_name(start: Start, tmp_path: Path) -> None:
    supervisor = start("api", "worker default")
    wait_for(lambda: list_pids(tmp_path, "worker default"))
    [pid] = list_pids(tmp_path, "worker default")
    assert " ".join(psutil.Process(pid).cmdline()).strip() == "likeness: worker default"
    assert psutil.Process(pid).ppid() == supervisor.pid


def test_the_api_is_stopped_before_the_workers(start: Start, tmp_path: Path) -> None:
    supervisor = start("api-1", "api-2", "worker-1", "worker-2")
    wait_for(lambda: list_pids(tmp_path, "worker-1") and list_pids(tmp_path, "worker-2"))
    pids = {int(path.suffix[1:]) for path in tmp_path.glob("*-*.*")}
    log = stop(supervisor)
    assert supervisor.returncode == 0
    ended = (tmp_path / "ended").read_text().split()
    assert [name[:3] for name in ended] == ["api", "api", "wor", "wor"]
    assert len(pids) == 4
    assert not any(is_running(pid) for pid in pids)
    assert "process.ended" not in log


def test_workers_wait_until_the_api_is_ready(start: Start, tmp_path: Path) -> None:
    start("api-slow", "worker")
    wait_for(lambda: list_pids(tmp_path, "worker"))
    assert (tmp_path / "slow-is-ready").exists()


@pytest.mark.parametrize("name", ["api", "worker"])
def test_a_killed_process_is_started_again(start: Start, tmp_path: Path, name: str) -> None:
    supervisor = start("api", "worker")
    wait_for(lambda: list_pids(tmp_path, "worker"))
    [first] = list_pids(tmp_path, name)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: len(list_pids(tmp_path, name)) == 2)
    assert not is_running(first)
    assert f"process.ended name='{name}' pid={first} signal=SIGKILL" in stop(supervisor)


@pytest.mark.parametrize("worker", ["worker", "worker-polling"])
def test_processes_end_with_a_supervisor_that_is_killed(start: Start, tmp_path: Path, worker: str) -> None:
    supervisor = start("api", worker)
    wait_for(lambda: list_pids(tmp_path, worker))
    supervisor.kill()
    pids = list_pids(tmp_path, "api") | list_pids(tmp_path, worker)
    wait_for(lambda: not any(is_running(pid) for pid in pids))
    wait_for(lambda: len((tmp_path / "ended").read_text().split()) == 2)


def test_a_process_that_does_not_end_is_killed(start: Start, tmp_path: Path) -> None:
    supervisor = start("api-stubborn", "worker")
    wait_for(lambda: list_pids(tmp_path, "worker"))
    stop(supervisor)
    assert supervisor.returncode == 0
    assert (tmp_path / "ended").read_text().split() == ["api-stubborn", "worker"]
    assert not is_running(*list_pids(tmp_path, "api-stubborn"))


def test_it_gives_up_if_the_api_is_never_ready(start: Start, tmp_path: Path) -> None:
    supervisor = start("api-1", "api-failing", "worker")
    _, log = supervisor.communicate(timeout=30)
    assert supervisor.returncode == 1
    assert "code=3" in log
    assert not list_pids(tmp_path, "worker")
    assert not any(is_running(pid) for pid in list_pids(tmp_path, "api-1"))


def test_it_gives_up_if_a_process_of_the_api_cannot_go_on(start: Start, tmp_path: Path) -> None:
    supervisor = start("api-1", "api-outdated", "worker")
    _, log = supervisor.communicate(timeout=30)
    assert supervisor.returncode == 1
    assert "code=78" in log
    pids = list_pids(tmp_path, "api-1") | list_pids(tmp_path, "worker")
    assert len(pids) == 2
    assert not any(is_running(pid) for pid in pids)


def test_a_process_that_dies_again_and_again_is_started_less_and_less_often(start: Start, tmp_path: Path) -> None:
    start("api", "dying")
    wait_for(lambda: len(list_pids(tmp_path, "dying")) >= 4)
    time.sleep(1.0)
    assert len(list_pids(tmp_path, "dying")) <= 7
    assert [compute_delay(count) for count in (0, 1, 2, 3, 4, 20)] == [0.0, 0.0, 0.25, 0.5, 1.0, 10.0]


def test_a_status_says_how_a_process_has_ended() -> None:
    assert describe_status(0x0300) == "code=3"
    assert describe_status(signal.SIGSEGV) == "signal=SIGSEGV"
