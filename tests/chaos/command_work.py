"""Work of an administrator: snapshots, restores and the rotation of keys, by commands that are killed."""

import time
from typing import Any

import pytest

from app.errors import AppError
from app.snapshots.reader import check_snapshot
from app.storage.snapshot_folders import MANIFEST
from ml import images
from ml.synthetic_faces import draw, person
from tests.chaos.gallery_work import PHOTOS_PER_PERSON, pack_photos, wait_until_erased
from tests.chaos.workload import Work, Workload, read_job_path
from tests.service_subprocess import check_consistency

LENT = "lent"
"""A collection that exists only in a snapshot, and is restored under other names."""
LENT_PEOPLE = 4
FIRST_LENT_PERSON = 100_000
MAX_COMMAND_SECONDS = 2.5


def start_snapshot(workload: Workload) -> Work:
    """Take a snapshot with a command that is killed: what it leaves is whole, or refused as a snapshot."""
    cut_off, whole = (workload.folder / f"{time.monotonic_ns()}-{name}" for name in ("cut", "whole"))
    command = workload.begin_command("snapshot", str(cut_off))
    time.sleep(workload.rng.random() * MAX_COMMAND_SECONDS)

    def check(_: dict[str, Any]) -> None:
        if (cut_off / MANIFEST).exists():
            check_snapshot(cut_off, ignore_progress)
        else:
            with pytest.raises(AppError):
                check_snapshot(cut_off, ignore_progress)
        result = workload.run_command("snapshot", str(whole))
        assert result.exit_code == 0, (result.output, result.exc_info)
        assert check_snapshot(whole, ignore_progress).rows["faces"] == workload.count("select count(*) from faces")

    return Work(check, victims=("command", "command", "command", "default", "api"), command=command)


def start_restore(workload: Workload) -> Work:
    """Restore a collection with a command that is killed, and run the command again."""
    folder, name = workload.folder / LENT, f"restored-{workload.restored}"
    if not folder.exists():
        _lend(workload)
    workload.restored += 1
    arguments = ("restore", str(folder), "--collection", LENT, "--as", name)
    command = workload.begin_command(*arguments)
    time.sleep(workload.rng.random() * MAX_COMMAND_SECONDS)

    def check(_: dict[str, Any]) -> None:
        assert command.returncode in (0, -9), workload.service.read_log_end()
        if command.returncode != 0 and not _is_restored(workload, name):
            result = workload.run_command(*arguments)
            assert result.exit_code == 0, (result.output, result.exc_info)
        assert _is_restored(workload, name)
        check_consistency(workload.service, name)
        _delete(workload, name)

    return Work(check, victims=("command", "command", "command", "default", "api"), command=command)


def _lend(workload: Workload) -> None:
    """Make a collection, take a snapshot of it, and delete it."""
    workload.send("collection.create", "PUT", f"/v1/collections/{LENT}")
    numbers = range(FIRST_LENT_PERSON, FIRST_LENT_PERSON + LENT_PEOPLE)
    photos = {
        f"lent-{i}/{n}.png": images.encode_png(draw(person(i), n)) for i in numbers for n in range(PHOTOS_PER_PERSON)
    }
    body: dict[str, Any] = {"params": {"aligned": "true"}, "content": pack_photos(photos)}
    answer = workload.send("face.import", "POST", f"/v1/collections/{LENT}:import", **body)
    assert workload.service.wait_for_job(read_job_path(answer))["state"] == "succeeded"
    result = workload.run_command("snapshot", str(workload.folder / LENT), "--collection", LENT)
    assert result.exit_code == 0, (result.output, result.exc_info)
    _delete(workload, LENT)


def _is_restored(workload: Workload, name: str) -> bool:
    count = workload.count("select count(*) from faces where collection_id = ?", name)
    assert count in (0, LENT_PEOPLE * PHOTOS_PER_PERSON), "a collection is restored as a whole, or not at all"
    return count > 0


def _delete(workload: Workload, collection: str) -> None:
    workload.erased += 1
    workload.send("collection.delete", "DELETE", f"/v1/collections/{collection}")
    wait_until_erased(workload)


def start_rotation(workload: Workload) -> Work:
    """Rotate a key with a command that is killed: no secret that was shown stops working within the overlap."""
    made = workload.send("key.create", "POST", "/v1/keys", json={"role": "reader", "name": "chaos"}).json()
    path = f"/v1/keys/{made['id']}:rotate"
    second = workload.send("key.rotate", "POST", path).json()["key"]
    command = workload.begin_command("keys", "rotate", made["id"])
    time.sleep(workload.rng.random() * MAX_COMMAND_SECONDS)

    def check(_: dict[str, Any]) -> None:
        assert command.returncode in (0, -9), workload.service.read_log_end()
        assert _is_accepted(workload, second)
        assert workload.count("select count(*) from keys where id = ?", made["id"]) == 1
        third = workload.send("key.rotate", "POST", path).json()["key"]
        assert _is_accepted(workload, third)
        workload.send("key.revoke", "DELETE", f"/v1/keys/{made['id']}")
        assert not _is_accepted(workload, third)

    return Work(check, victims=("command", "command", "api", "all"), command=command)


def _is_accepted(workload: Workload, secret: str) -> bool:
    workload.service.wait_until_ready()
    answer = workload.service.client.get("/v1/collections", headers={"x-api-key": secret})
    assert answer.status_code in (200, 401)
    return answer.status_code == 200


def ignore_progress(step: str, done: int, total: int | None) -> None:
    """Report no progress."""
