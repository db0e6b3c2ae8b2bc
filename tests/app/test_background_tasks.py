"""Tasks beside the follower: two at once, errors logged or raised, and none holds up the end of the process."""

import subprocess
import sys
import threading
from concurrent.futures import Future

import pytest

from app.serving.background_tasks import MAX_RUNNING_TASKS, BackgroundTasks

PROGRAM = """
import threading
from app.serving.background_tasks import BackgroundTasks
started = threading.Event()
tasks = BackgroundTasks(lambda: None)
tasks.start("endless", lambda: (started.set(), threading.Event().wait()))
started.wait()
tasks.finish(0.1)
print("finished", flush=True)
"""


def test_a_process_ends_while_a_task_is_under_way() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "finished\n"


def test_tasks_run_two_at_a_time_and_a_key_runs_once() -> None:
    lock, go = threading.Lock(), threading.Event()
    running, most, done = [0], [0], threading.Semaphore(0)

    def work() -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        go.wait(10)
        with lock:
            running[0] -= 1
        return 7

    tasks = BackgroundTasks(done.release)
    futures = [tasks.start(key, work) for key in range(5)]
    assert tasks.start(0, work) is futures[0]
    assert tasks.result(0, work) is None
    go.set()
    assert [future.result(10) for future in futures] == [7] * 5
    assert done.acquire(timeout=10), "the end of the last task is announced"
    assert most == [MAX_RUNNING_TASKS]
    assert tasks.result(0, work) == 7
    assert not tasks.busy(0)


def test_many_short_tasks_start_two_threads_and_are_announced_together() -> None:
    """Each was a thread from the start, and its end had the follower look at all deployments: 2,500 times 2,500."""
    ended, announced = threading.Event(), list[int]()

    def announce() -> None:
        announced.append(sum(future.done() for future in futures))
        if announced[-1] == len(futures):
            ended.set()

    others, most = threading.active_count(), [0]

    def work() -> None:
        most[0] = max(most[0], threading.active_count())

    tasks, futures = BackgroundTasks(announce), list[Future[object]]()
    go = threading.Event()
    futures += [tasks.start(("first", number), lambda: go.wait(10)) for number in range(MAX_RUNNING_TASKS)]
    futures += [tasks.start(key, work) for key in range(200)]
    go.set()
    assert ended.wait(10)
    assert len(announced) < 20
    assert most[0] <= others + MAX_RUNNING_TASKS


def test_an_urgent_task_waits_for_no_other() -> None:
    """Whether a threshold holds was checked after the measurements of other collections, which take minutes."""
    tasks, go = BackgroundTasks(lambda: None), threading.Event()
    slow = [tasks.start(("slow", number), lambda: go.wait(10)) for number in range(3 * MAX_RUNNING_TASKS)]
    assert tasks.start("urgent", lambda: 7, is_urgent=True).result(10) == 7
    assert not any(future.done() for future in slow)
    go.set()
    tasks.finish(10)


def test_tasks_go_on_after_an_announcement_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise AttributeError("the client is being closed")

    tasks = BackgroundTasks(fail)
    for key in range(3 * MAX_RUNNING_TASKS):
        assert tasks.start(key, lambda: 7).result(10) == 7
    tasks.finish(10)
    assert "background_task.not_announced" in caplog.text


def test_an_error_is_raised_where_the_result_is_taken_and_logged_where_it_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    go = threading.Event()

    def fail() -> None:
        go.wait(10)
        raise ValueError("broken")

    tasks = BackgroundTasks(lambda: None)
    assert tasks.result("awaited", fail) is None
    tasks.start("dropped", fail)
    go.set()
    tasks.finish(10)
    tasks.tidy()
    assert "background_task.failed key=dropped" in caplog.text
    assert "key=awaited" not in caplog.text
    assert not tasks.busy("dropped")
    with pytest.raises(ValueError, match="broken"):
        tasks.result("awaited", fail)
