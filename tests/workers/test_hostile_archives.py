"""Imports of hostile archives end as a refusal with its reason, and nothing of the upload stays on the disk."""

import gzip
import io
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from app.db.session import writing
from app.db.tables import Face, Job, JobItem
from app.enrolment.archives import parser_client
from app.queue import jobs
from app.queue.messages import ImportArchive
from app.resources import Resources
from tests.app.test_archive_parser import replace_task
from tests.app.test_archives import overlapping, pax_header
from tests.app.test_archives import tar as write_tar
from tests.workers.test_import import PEOPLE, asked, count, drain, items, staff
from workers.context import JobContext
from workers.worker import Worker

__all__ = ["staff"]

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

FILES = dict(list(PEOPLE.items())[:4])
DEEP_JSON = b'{"file": "p0/0.png", "metadata": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}"


def zipped(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def make_hostile_archives(folder: Path) -> dict[str, tuple[bytes, str, str]]:
    """Return name -> (bytes, code of the problem, phrase of its detail)."""
    plain = write_tar(folder / "plain", FILES).read_bytes()
    packed, many = gzip.compress(plain), {f"{n}.png": bytes(60_000) for n in range(200)}
    damaged = bytearray(packed)
    damaged[2000:2100] = bytes(100)
    lost = bytearray(zipped(FILES))
    entry = lost.index(b"PK\x01\x02")
    lost[entry + 42 : entry + 46] = b"\xf0" * 4
    manifest = write_tar(folder / "manifest", FILES | {"manifest.jsonl": DEEP_JSON}).read_bytes()
    return {
        "pax header of digits": (pax_header(b"1" * 900_000) + plain, "InvalidArchive", "16,384 are allowed"),
        "short pax header of digits": (pax_header(b"1" * 16_000) + plain, "InvalidArchive", "is damaged"),
        "chained pax headers": (pax_header(b"12 mtime=12\n") * 2000 + plain, "InvalidArchive", "in a row"),
        "chained long names": (pax_header(b"x\0", b"L") * 2000 + plain, "InvalidArchive", "in a row"),
        "damaged gzip": (bytes(damaged), "InvalidArchive", "not a complete gzip file"),
        "truncated gzip": (packed[:-100], "InvalidArchive", "not a complete gzip file"),
        "truncated tar": (plain[:5_000], "InvalidArchive", "cut short"),
        "gzip bomb": (gzip.compress(bytes(40 * 2**20)), "ArchiveTooLarge", "unpacks to more than"),
        "deep JSON": (manifest, "InvalidArchive", "line 1 of manifest.jsonl: it is nested more than 64"),
        "offset outside of a zip": (bytes(lost), "InvalidArchive", "outside of the archive"),
        "overlapping entries": (overlapping(folder / "o", 500).read_bytes(), "InvalidArchive", "share the bytes"),
        "ratio of the whole": (zipped(many), "ArchiveTooLarge", "unpacks to more than"),
        "truncated zip": (zipped(FILES)[:-30], "InvalidArchive", "not a complete zip"),
    }


CASES = (
    "pax header of digits", "short pax header of digits", "chained pax headers", "chained long names", "damaged gzip",
    "truncated gzip", "truncated tar", "gzip bomb", "deep JSON", "offset outside of a zip", "overlapping entries",
    "ratio of the whole", "truncated zip",
)  # fmt: skip


@on_sqlite
@pytest.mark.parametrize("case", CASES)
def test_a_hostile_archive_is_refused_at_once_with_its_reason(case: str, staff: Resources, tmp_path: Path) -> None:
    data, code, phrase = make_hostile_archives(tmp_path)[case]
    path = staff.uploads / "archive"
    path.write_bytes(data)
    began = time.monotonic()
    job = drain(staff, asked(staff, path))
    assert time.monotonic() - began < 10
    assert (job.state, (job.problem or {})["code"]) == ("failed", code), job.problem
    assert phrase in (job.problem or {})["detail"]
    assert (count(staff, Face), count(staff, JobItem), [*staff.uploads.iterdir()]) == (0, 0, [])


def test_every_case_is_tried(tmp_path: Path) -> None:
    assert tuple(make_hostile_archives(tmp_path)) == CASES


@on_sqlite
def test_a_truncated_member_of_a_zip_is_the_only_photo_refused(staff: Resources) -> None:
    data = bytearray(zipped(FILES))
    data[60:100] = bytes(40)
    (staff.uploads / "archive").write_bytes(data)
    job = drain(staff, asked(staff, staff.uploads / "archive"))
    assert (job.state, job.done, job.failed) == ("succeeded", 3, 1)
    assert items(staff, job.id)[next(iter(FILES))] == ("failed", {"reasons": ["InvalidImageFormat"]})


@on_sqlite
def test_any_error_of_an_import_removes_its_upload(staff: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, context: JobContext) -> None:
        raise RuntimeError("a fault of the service")

    path = staff.uploads / "archive"
    path.write_bytes(zipped(FILES))
    monkeypatch.setattr("workers.handlers.importing.list_archive", fail)
    job = drain(staff, asked(staff, path))
    assert (job.problem or {})["code"] == "InternalServerError"
    assert not path.exists()


@on_sqlite
def test_an_import_keeps_its_upload_while_the_disk_is_full(staff: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    path = staff.uploads / "archive"
    path.write_bytes(gzip.compress(write_tar(staff.uploads / "t", FILES).read_bytes()))
    (staff.uploads / "t").unlink()
    with monkeypatch.context() as full:
        replace_task(full, "raise OSError(28, '')")
        job = asked(staff, path)
        Worker(staff, "default").step()
        assert path.exists()
    with writing(staff.database) as session:
        assert session.get_one(Job, job).state == "queued"
        session.get_one(Job, job).not_before = 0.0
    assert drain(staff, job).done == len(FILES)


@on_sqlite
def test_a_parser_that_crashes_gets_a_second_chance(
    staff: Resources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, mark = staff.uploads / "archive", tmp_path / "crashed"
    path.write_bytes(zipped(FILES))
    command = parser_client.COMMAND
    with monkeypatch.context() as crash:
        replace_task(crash, f"os.mkdir({str(mark)!r}); os.kill(os.getpid(), signal.SIGKILL)")
        crashing = parser_client.COMMAND
    assert command == parser_client.COMMAND
    job = asked(staff, path)
    runs: list[Any] = []
    run_parser = parser_client.run_parser

    def run_and_crash_first(*arguments: Any) -> Any:
        runs.append(arguments)
        monkeypatch.setattr(parser_client, "COMMAND", crashing if len(runs) == 1 else command)
        return run_parser(*arguments)

    monkeypatch.setattr("app.enrolment.archives.photo_files.run_parser", run_and_crash_first)
    assert drain(staff, job).done == len(FILES)
    assert mark.exists()
    assert len(runs) > 2


@on_sqlite
def test_the_lease_is_kept_while_a_parser_runs(staff: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    path = staff.uploads / "archive"
    path.write_bytes(zipped(FILES))
    replace_task(monkeypatch, "import time; time.sleep(4); perform(request)")  # longer than a lease
    with writing(staff.database) as session:
        job = jobs.enqueue(session, ImportArchive(collection="staff", path=str(path), aligned=True)).id
    freed: list[int] = []
    ended = threading.Event()

    def free_abandoned() -> None:
        while not ended.wait(0.3):
            with writing(staff.database) as session:
                freed.append(jobs.free_abandoned(session))

    thread = threading.Thread(target=free_abandoned)
    thread.start()
    try:
        assert drain(staff, job).done == len(FILES)
    finally:
        ended.set()
        thread.join()
    assert len(freed) > 10
    assert set(freed) == {0}
