"""What a restore has reserved and written is removed if it failed or was killed, before a receipt becomes final."""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from app.db.session import reading, writing
from app.db.tables import Collection, Erasure, Job, KeptSnapshot, Subject
from app.errors import Conflict, NotFound
from app.galleries.deletion import delete_collection
from app.queue import jobs
from app.queue.messages import RestoreSnapshot, Sweep
from app.resources import Resources
from app.snapshots import collection_restore
from app.snapshots.collection_restore import list_lost_files
from app.snapshots.reader import open_snapshot
from app.snapshots.reservations import RESERVATION, SERVICE, lock_name
from app.snapshots.restore import restore_files
from app.storage.blob_store import Blobs
from app.storage.snapshot_folders import locate_snapshot
from tests.workers.test_erasing import context, erase_subject, erase_subject_slowly, read_state, staff, work, work_until
from tests.workers.test_kept_snapshots import begin, take_directly
from workers.cleanup import stored_files
from workers.context import Interrupted, JobContext, Later
from workers.erasing import completion
from workers.erasing.completion import complete_erasures
from workers.erasing.unfinished_restores import remove_unfinished_restores
from workers.handlers.snapshot import restore_snapshot
from workers.handlers.sweep import sweep_all

__all__ = ["staff"]
HELD_SECONDS = 0.5
MESSAGE = RestoreSnapshot(snapshot="kept", source="staff", collection="copy")


def leave_behind(resources: Resources) -> None:
    """Leave what a restore leaves that is killed while it writes files."""
    with writing(resources.database) as session:
        session.add(Collection(id="copy", description=RESERVATION))
    names = list(resources.blobs.names("staff"))
    resources.blobs.put("copy", [(name, resources.blobs.get("staff", name)) for name in names])


def list_left(resources: Resources) -> tuple[list[str], list[str]]:
    """List the description of the collection, if it exists, and its files."""
    with reading(resources.database) as session:
        described = list(session.scalars(select(Collection.description).where(Collection.id == "copy")))
    return described, list(resources.blobs.names("copy"))


def kill_restore(resources: Resources) -> JobContext:
    take_directly(resources, "kept")
    running = begin(resources, MESSAGE)
    leave_behind(resources)
    return running


def test_a_killed_restore_that_fails_at_its_next_run_leaves_nothing(staff: Resources) -> None:
    running = kill_restore(staff)
    erasure = erase_subject(staff)
    with pytest.raises(Conflict, match="was deleted in the collection of the snapshot"):
        restore_snapshot(MESSAGE, running)
    assert list_left(staff) == ([], [])
    with writing(staff.database) as session:
        jobs.end(session, running.job_id, "failed")
    work_until(staff, lambda: read_state(staff, erasure) == "final")


def test_a_killed_restore_whose_snapshot_was_deleted_leaves_nothing(staff: Resources) -> None:
    running = kill_restore(staff)
    with writing(staff.database) as session:
        session.execute(delete(KeptSnapshot))
    with pytest.raises(NotFound):
        restore_snapshot(MESSAGE, running)
    assert list_left(staff) == ([], [])


def test_what_was_written_to_a_killed_restore_stays_without_the_files(staff: Resources) -> None:
    running = kill_restore(staff)
    with writing(staff.database) as session:
        session.add(Subject(collection_id="copy", id="s9", external_id="s9", consent=False))
    with pytest.raises(Conflict, match="exists"):
        restore_snapshot(MESSAGE, running)
    assert list_left(staff) == ([RESERVATION], [])
    with reading(staff.database) as session:
        assert session.scalars(select(Subject.consent).where(Subject.collection_id == "copy")).all() == [False]


@pytest.mark.parametrize("state", ["failed", "cancelled", None])
def test_a_receipt_is_final_only_without_what_a_killed_restore_has_left(staff: Resources, state: str | None) -> None:
    """None: a command was killed, and no job knows of it."""
    if state is None:
        leave_behind(staff)
    else:
        running = kill_restore(staff)
        with writing(staff.database) as session:
            jobs.end(session, running.job_id, state)
    staff.blobs.put("gone", [(Blobs.photo("f" * 64), b"x")])
    erasure = erase_subject(staff)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert list_left(staff) == ([], [])
    assert list(staff.blobs.names("gone")) == []


@pytest.mark.parametrize("restored", ["copy", SERVICE])
def test_an_erasure_waits_for_a_command_that_restores(staff: Resources, restored: str) -> None:
    leave_behind(staff)
    before = list_left(staff)
    erasure = erase_subject(staff)
    work(staff)
    with lock_name(staff.settings.home, restored):
        complete_erasures(context(staff))
        assert (read_state(staff, erasure), list_left(staff)) == ("pending", before)
    complete_erasures(context(staff))
    assert (read_state(staff, erasure), list_left(staff)) == ("final", ([], []))


def test_an_erasure_leaves_to_a_job_what_it_will_restore(staff: Resources) -> None:
    kill_restore(staff)
    before = list_left(staff)
    with lock_name(staff.settings.home, "copy"):
        assert remove_unfinished_restores(context(staff)), "it holds up the erasures of its collection itself"
    assert list_left(staff) == before


def list_lost(resources: Resources) -> set[str]:
    """List the files of the snapshot's collection that the restored one lacks."""
    home = resources.settings.home
    with open_snapshot(locate_snapshot(home, "kept")) as opened:
        return list_lost_files(opened, home, "staff", "copy")


def test_a_restore_that_ends_while_it_writes_lost_files_again_is_not_done(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its collection would lack them, and its job would end as succeeded at its next run."""
    take_directly(staff, "kept")
    running, calls = begin(staff, MESSAGE), list[int]()

    def lose_and_end(home: Path, files: Iterable[tuple[str, bytes]], renamed: dict[str, str]) -> int:
        calls.append(len(calls))
        if len(calls) == 2:
            raise Interrupted
        count = restore_files(home, files, renamed)
        if len(calls) == 1:
            staff.blobs.remove("copy", list(staff.blobs.names("copy")))
        return count

    monkeypatch.setattr(collection_restore, "restore_files", lose_and_end)
    with pytest.raises(Interrupted):
        restore_snapshot(MESSAGE, running)
    assert list_left(staff)[0] == [], "no collection that lacks files"
    assert restore_snapshot(MESSAGE, running)["faces"] == 4
    assert list_lost(staff) == set()


def test_a_restore_whose_files_are_always_removed_fails(staff: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    take_directly(staff, "kept")
    running = begin(staff, MESSAGE)
    monkeypatch.setattr(collection_restore, "restore_files", lambda home, files, renamed: len(list(files)))
    with pytest.raises(Conflict, match="are removed again and again"):
        restore_snapshot(MESSAGE, running)
    assert list_left(staff) == ([], [])


def test_a_restore_waits_until_an_earlier_collection_of_the_new_name_is_erased(staff: Resources) -> None:
    """The erasure removes every file of the name that no row names."""
    take_directly(staff, "kept")
    restore_snapshot(MESSAGE, begin(staff, MESSAGE))
    with writing(staff.database) as session:
        erasure = delete_collection(session, session.get_one(Collection, "copy")).id
        session.execute(update(Job).where(Job.kind == RestoreSnapshot.kind).values(state="succeeded"))
    running = begin(staff, MESSAGE)
    with pytest.raises(Later):
        restore_snapshot(MESSAGE, running)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert restore_snapshot(MESSAGE, running)["faces"] == 4
    assert list_lost(staff) == set()


def test_a_restore_and_the_erasure_of_its_new_name_do_not_wait_for_each_other(staff: Resources) -> None:
    """A restore was killed, and the collection that it had reserved was deleted."""
    running = kill_restore(staff)
    with writing(staff.database) as session:
        erasure = delete_collection(session, session.get_one(Collection, "copy")).id
    with pytest.raises(Conflict, match="of the new name was deleted"):
        restore_snapshot(MESSAGE, running)
    with writing(staff.database) as session:
        jobs.end(session, running.job_id, "failed")
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert list_left(staff) == ([], [])


@pytest.mark.parametrize("restored", ["copy", SERVICE])
def test_the_sweep_leaves_the_old_files_of_a_long_restore(
    staff: Resources, monkeypatch: pytest.MonkeyPatch, restored: str
) -> None:
    leave_behind(staff)
    before = list_left(staff)
    staff.blobs.put("to-come", [(Blobs.photo("f" * 64), b"x")])
    monkeypatch.setattr(stored_files, "ORPHAN_SECONDS", -1.0)  # any file is old
    with lock_name(staff.settings.home, restored):
        sweep_all(Sweep(), context(staff))
    assert list_left(staff) == before
    assert bool(list(staff.blobs.names("to-come"))) == (restored == SERVICE)
    sweep_all(Sweep(), context(staff))
    assert list_left(staff) == ([RESERVATION], [])


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_restore_that_begins_while_a_deletion_is_carried_out_writes_nothing_before_the_receipt(
    staff: Resources,
) -> None:
    take_directly(staff, "kept")
    restores = list[tuple[JobContext, Future[Any]]]()
    with ThreadPoolExecutor(1) as threads:

        def restore(resources: Resources) -> None:
            running = begin(resources, MESSAGE)
            restores.append((running, threads.submit(restore_snapshot, MESSAGE, running)))
            wait([restores[0][1]], HELD_SECONDS)
            assert list_left(resources) == ([], [])

        erasure = erase_subject_slowly(staff, restore)
        [(running, result)] = restores
        with pytest.raises(Later):
            result.result()
    assert list_left(staff) == ([], [])
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert restore_snapshot(MESSAGE, running)["faces"] == 2


def test_files_that_a_restore_writes_again_at_its_end_are_gone_before_the_receipt_is_final(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes what was lost since its rows were stored, also if these are erased meanwhile."""
    erasure = erase_subject(staff)
    with reading(staff.database) as session:
        photo = Blobs.photo(session.get_one(Erasure, erasure).targets["images"][0])

    def end_restore(context: JobContext) -> bool:
        staff.blobs.put("staff", [(photo, b"of an erased person")])
        return remove_unfinished_restores(context)

    monkeypatch.setattr(completion, "remove_unfinished_restores", end_restore)
    work_until(staff, lambda: read_state(staff, erasure) == "final")
    assert not staff.blobs.has("staff", [photo])
