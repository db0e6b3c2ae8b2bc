"""A process that alone has lost PostgreSQL notices it by the signs of the others in its home."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from sqlalchemy import Connection, text

from app.config import Settings
from app.db.servers import reach
from app.db.servers.connections import SERVER_INFO
from app.db.servers.history import ServerTimeline
from app.db.servers.reach import SIGNS_FOLDER, DatabaseReach, SuspendAwareClock, find_reach
from app.db.session import close_database, open_database, reading
from app.errors import Busy
from app.serving.reporter import ALIVE_SECONDS, HEARTBEAT_SECONDS

Wait = Callable[[float], None]
SECONDS = 60


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Wait:
    """Have time go on, by so many seconds."""
    at = [1000.0]
    monkeypatch.setattr(reach, "read_clock", lambda: at[0])

    def go_on(seconds: float) -> None:
        at[0] += seconds

    return go_on


def lose(one: DatabaseReach, wait: Wait, seconds: int, *others: DatabaseReach) -> None:
    """Have one process look for the database for so long, which the others reach."""
    for _ in range(2 * seconds):
        for other in others:
            other.note_answer()
        one.note_loss()
        wait(0.5)


def test_while_nobody_reaches_the_database_nobody_is_alone(tmp_path: Path, wait: Wait) -> None:
    one, other = DatabaseReach(tmp_path), DatabaseReach(tmp_path)
    one.note_answer()
    lose(one, wait, 1, other)  # which loses it a second later
    lose(one, wait, SECONDS)
    one.check()


def test_a_process_that_others_reach_the_database_without_is_alone_until_it_has_caught_up(
    tmp_path: Path, wait: Wait
) -> None:
    one, other = DatabaseReach(tmp_path), DatabaseReach(tmp_path)
    lose(one, wait, SECONDS)
    lose(one, wait, 5, other)
    with pytest.raises(Busy, match="from others"):
        one.check()
    lose(one, wait, SECONDS)
    one.note_answer()
    assert one.is_alone, "what the others have changed is not read yet"
    one.note_answer()
    one.note_caught_up(reach.read_clock())
    one.check()
    lose(one, wait, SECONDS)
    one.check()


def test_where_signs_cannot_be_read_others_may_reach_the_database(
    tmp_path: Path, wait: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / SIGNS_FOLDER).write_text("")
    one = DatabaseReach(tmp_path)
    for _ in range(2):
        one.note_answer()
        wait(SECONDS)
    assert caplog.text.count("database.no_sign_left") == 1
    lose(one, wait, 6)
    assert one.is_alone


def test_a_sign_counts_though_the_clock_was_set_back(tmp_path: Path, wait: Wait) -> None:
    one, other = DatabaseReach(tmp_path), DatabaseReach(tmp_path)
    other.note_answer()
    [sign] = (tmp_path / SIGNS_FOLDER).iterdir()
    os.utime(sign, (time.time() + 3600,) * 2)
    lose(one, wait, 3)
    wait(1.0)
    lose(one, wait, 3, other)
    assert one.is_alone


def test_a_new_process_and_one_that_signed_before_count_alike(tmp_path: Path, wait: Wait) -> None:
    one = DatabaseReach(tmp_path)
    lose(one, wait, 3)
    lose(one, wait, 3, DatabaseReach(tmp_path))
    assert one.is_alone


def test_when_the_database_is_back_a_process_may_reach_it_a_little_later(tmp_path: Path, wait: Wait) -> None:
    one, other = DatabaseReach(tmp_path), DatabaseReach(tmp_path)
    lose(one, wait, 10)
    other.note_answer()
    one.note_loss()
    wait(0.8)
    one.note_loss()
    one.note_answer()
    one.check()


def test_a_process_whose_follower_is_held_up_answers_only_while_nobody_reaches_the_database(
    tmp_path: Path, wait: Wait
) -> None:
    one = DatabaseReach(tmp_path)
    wait(SECONDS)
    one.note_answer()
    one.check()  # it serves nothing before its follower's first step
    one.note_caught_up(reach.read_clock())
    wait(8.9)
    one.note_answer()
    one.check()
    wait(0.2)
    with pytest.raises(Busy, match="has not read the last changes"):
        one.check()
    lose(one, wait, SECONDS)
    with pytest.raises(Busy, match="has not read the last changes"):
        one.check()  # it did not know the last changes when it lost the database
    one.note_answer()
    one.note_caught_up(reach.read_clock())
    one.check()
    lose(one, wait, SECONDS)
    one.check()


def test_a_process_that_read_before_others_wrote_has_not_caught_up(tmp_path: Path, wait: Wait) -> None:
    """A question that waits in a proxy, or in a frozen process, is answered by what was so when it was asked."""
    one, other = DatabaseReach(tmp_path), DatabaseReach(tmp_path)
    began_at = reach.read_clock()
    lose(one, wait, 5, other)
    one.note_answer()
    one.note_caught_up(began_at)
    with pytest.raises(Busy, match="from others"):
        one.check()
    one.note_caught_up(reach.read_clock())
    one.check()
    wait(20.0)
    one.note_answer()
    one.note_caught_up(reach.read_clock() - 20.0)
    with pytest.raises(Busy, match="has not read the last changes"):
        one.check()
    one.note_caught_up(reach.read_clock())
    one.check()


def watch(one: DatabaseReach, wait: Wait, seconds: int, *others: DatabaseReach) -> None:
    """Have a process that gets no answer watch for so long, which the others reach."""
    for _ in range(2 * seconds):
        for other in others:
            other.note_answer()
        one.note_silence()
        wait(0.5)


@pytest.mark.parametrize("others_are_answered", [True, False])
def test_a_process_that_gets_no_answer_and_no_error_counts_as_cut_off_if_others_are_answered(
    tmp_path: Path, wait: Wait, others_are_answered: bool
) -> None:
    one, other = DatabaseReach(tmp_path), DatabaseReach(tmp_path)
    one.note_answer()
    one.note_caught_up(reach.read_clock())
    watch(one, wait, SECONDS, *([other] if others_are_answered else []))
    if others_are_answered:
        with pytest.raises(Busy, match="from others"):
            one.check()
    else:
        one.check()


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_process_that_was_frozen_answers_nothing_until_it_has_caught_up(
    tmp_path: Path, wait: Wait, is_lost: bool
) -> None:
    one = DatabaseReach(tmp_path)
    one.note_answer()
    one.note_caught_up(reach.read_clock())
    if is_lost:
        watch(one, wait, SECONDS)
        one.check()
    wait(SECONDS)
    for _ in range(10):
        with pytest.raises(Busy, match="has not read the last changes"):
            one.check()
        watch(one, wait, 1)
    one.note_answer()
    with pytest.raises(Busy, match="has not read the last changes"):
        one.check()
    one.note_caught_up(reach.read_clock())
    one.check()


def test_a_process_is_held_up_before_an_erasure_stops_to_wait_for_it() -> None:
    """Its last heartbeat may be as old as one that was not due yet, and a step is begun after two pauses at most."""
    longest_pause = next(limit.le for limit in Settings.model_fields["poll_seconds"].metadata if hasattr(limit, "le"))
    assert reach.MAX_SILENCE_SECONDS + HEARTBEAT_SECONDS + 2 * longest_pause < ALIVE_SECONDS


def test_time_in_which_a_paused_machine_did_not_run_is_counted_once_its_wall_clock_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = {"running": 100.0, "wall": 1_000_000.0}
    monkeypatch.setattr(reach, "time", SimpleNamespace(time=lambda: at["wall"], clock_gettime=lambda _: at["running"]))
    clock = SuspendAwareClock()

    def go_on(running: float, wall: float) -> float:
        before = clock.read()
        at["running"] += running
        at["wall"] += wall
        return clock.read() - before

    assert go_on(3.0, 3.0) == pytest.approx(3.0)
    assert go_on(0.1, 20.1) == pytest.approx(20.1), "it was paused for 20 seconds"
    assert go_on(3.0, 3.0) == pytest.approx(3.0)
    assert go_on(1.0, 1.5) == pytest.approx(1.0), "the wall clock is corrected a little"
    assert go_on(3.0, -3600.0) == pytest.approx(3.0), "the wall clock is set back"
    assert go_on(3.0, 3.0) == pytest.approx(3.0)
    assert go_on(3.0, 3603.0) == pytest.approx(3603.0), "time that was not lost is counted: the follower catches up"


def test_every_answer_of_postgresql_is_a_sign(tmp_path: Path, postgres: str) -> None:
    database = open_database(Settings(database_url=postgres).database, tmp_path)
    with reading(database) as session:
        session.scalar(text("SELECT 1"))
    close_database(database)
    assert find_reach(database) is not None
    assert len(list((tmp_path / SIGNS_FOLDER).iterdir())) == 1


def test_a_database_in_the_home_is_not_lost_by_one_process(tmp_path: Path, wait: Wait) -> None:
    database = open_database(Settings(home=tmp_path).database, tmp_path)
    one = find_reach(database)
    assert one is not None
    one.note_caught_up(reach.read_clock())
    lose(one, wait, SECONDS, DatabaseReach(tmp_path))
    one.check()
    one.note_caught_up(reach.read_clock())
    watch(one, wait, 8)
    one.check()
    watch(one, wait, 2)
    with pytest.raises(Busy, match="has not read the last changes"):
        one.check()  # it answers or fails: who is not answered is held up, or was frozen
    close_database(database)


def test_signs_of_processes_that_ended_long_ago_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = DatabaseReach(tmp_path)
    one.note_answer()
    one.remove_old_signs()
    assert len(list((tmp_path / SIGNS_FOLDER).iterdir())) == 1
    monkeypatch.setattr(reach, "OLD_SECONDS", -1.0)
    one.remove_old_signs()
    assert not list((tmp_path / SIGNS_FOLDER).iterdir())


def test_a_process_signs_anew_when_its_database_is_another(tmp_path: Path) -> None:
    reach = DatabaseReach(tmp_path)
    for server in (ServerTimeline("7", 1, 5), ServerTimeline("7", 1, 5), ServerTimeline("7", 2, 6), None):
        reach._signed_at = float("-inf")
        reach.note_answer(cast(Connection, SimpleNamespace(info={SERVER_INFO: server})))
        [sign] = (tmp_path / SIGNS_FOLDER).iterdir()
        inode, _, database = sign.read_text().partition(" ")
        assert inode == str(sign.stat().st_ino)
        assert database == (f"7/{server.database}" if server else "")
