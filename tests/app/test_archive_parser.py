"""The process that parses an archive: it answers like the parsers, and may die of any limit or fault."""

import errno
import gzip
import os
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.config import Settings
from app.enrolment.archives import parser_client
from app.enrolment.archives.entries import ArchiveLimits, Entry
from app.enrolment.archives.parser_client import ParserCrashed, run_parser
from app.enrolment.archives.parser_request import ParserRequest
from app.enrolment.archives.photo_files import PhotoFiles, open_photo_files
from app.errors import AppError, Busy, Invalid, NotFound, TooLarge
from ml.errors import Unreadable
from tests.app.test_archives import FILES, HIDDEN, folder, packed, tar

LIMITS = ArchiveLimits(entries=100, unpacked=10**7, ratio=200, photo=10**6)


def ignore() -> None:
    """A check that lets the parser go on."""


def open_files(path: Path, **settings: Any) -> PhotoFiles:
    return open_photo_files(path, Settings(**settings), ignore)


def make_request(path: Path, **values: Any) -> ParserRequest:
    defaults: dict[str, Any] = {"task": "list", "memory_bytes": 2**30, "cpu_seconds": 60}
    return ParserRequest(path=str(path), limits=LIMITS, **defaults | values)


def list_parsers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "parser_process" in " ".join(child.cmdline())]


def replace_task(monkeypatch: pytest.MonkeyPatch, statements: str) -> None:
    """Have parsers run these statements in place of their task, under its limits. `perform` does the task."""
    code = f"""
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from app.enrolment.archives import parser_process
perform = parser_process.perform
def run(request):
    {statements}
parser_process.perform = run
parser_process.main()
"""
    command = (sys.executable, "-I", "-S", "-c", code, str(parser_client.ROOT))
    monkeypatch.setattr(parser_client, "COMMAND", command)


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip", "stored zip", "folder"])
def test_files_are_listed_and_read_like_by_the_parsers(kind: str, tmp_path: Path) -> None:
    everything = FILES | HIDDEN
    path = {
        "tar": lambda: tar(tmp_path / "a", everything),
        "tar.gz": lambda: tar(tmp_path / "a", everything, "w:gz"),
        "zip": lambda: packed(tmp_path / "a", everything),
        "stored zip": lambda: packed(tmp_path / "a", everything, zipfile.ZIP_STORED),
        "folder": lambda: folder(tmp_path / "a", everything),
    }[kind]()
    files = open_files(path)
    entries = list(files.list_files())
    assert sorted(e.name for e in entries) == sorted(FILES)
    entries.reverse()
    assert list(files.iterate_photos(entries)) == [FILES[e.name] for e in entries]
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("kind", ["tar", "zip", "folder"])
def test_a_photo_over_the_limit_or_damaged_is_the_only_one_that_is_not_read(kind: str, tmp_path: Path) -> None:
    make = {"tar": tar, "zip": packed, "folder": folder}[kind]
    path = make(tmp_path / "a", {"1.jpg": b"x", "2.jpg": b"y" * 101, "3.jpg": b"z"})
    files = open_files(path, max_image_bytes=100)
    first, second, third = files.iterate_photos(files.list_files())
    assert (first, third) == (b"x", b"z")
    assert isinstance(second, Unreadable)
    assert second.code == "ImageTooLarge"


@pytest.mark.parametrize("kind", ["tar", "zip", "folder"])
def test_the_rows_of_a_manifest_are_read(kind: str, tmp_path: Path) -> None:
    make = {"tar": tar, "zip": packed, "folder": folder}[kind]
    lines = "file,subject\n" + "".join(f"{n}.jpg,{'ü' * 200}\n" for n in range(5_000))
    files = open_files(make(tmp_path / "a", {"manifest.csv": lines.encode(), "1.jpg": b"x"}))
    [entry] = [e for e in files.list_files() if e.name == "manifest.csv"]
    rows = list(files.iterate_manifest_rows(entry))
    assert len(rows) == 5_000
    assert rows[-1] == {"file": "4999.jpg", "subject": "ü" * 200, "metadata": {}}


def test_a_damaged_manifest_in_a_zip_is_refused(tmp_path: Path) -> None:
    path = packed(tmp_path / "a", {"manifest.csv": b"file\n" + b"a\n" * 500})
    data = bytearray(path.read_bytes())
    data[45] ^= 255
    path.write_bytes(data)
    files = open_files(path)
    [entry] = files.list_files()
    with pytest.raises(Invalid, match=r"manifest\.csv: the archive is damaged"):
        list(files.iterate_manifest_rows(entry))


def test_what_a_parser_refuses_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="leads out"):
        list(open_files(tar(tmp_path / "a", {"../x": b""})).list_files())
    with pytest.raises(TooLarge, match="3 entries"):
        list(open_files(packed(tmp_path / "a", FILES), max_import_entries=3).list_files())
    with pytest.raises(NotFound):
        list(open_files(tmp_path / "none").list_files())
    with pytest.raises(Invalid, match="neither tar"):
        list(open_files(folder(tmp_path / "f", {"a": b"text"}) / "a").list_files())


@pytest.mark.parametrize("inner", [gzip.compress(b"x" * 600), b"text" * 200, b""], ids=["gzip", "text", "empty"])
def test_a_gzip_file_of_something_else_is_refused_and_leaves_no_file(inner: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(inner))
    with pytest.raises(Invalid, match=r"gzip file inside|neither tar"):
        list(open_files(tmp_path / "a").list_files())
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_gzip_bomb_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(bytes(50 * 2**20)))
    with pytest.raises(TooLarge, match="unpacks to more than"):
        list(open_files(tmp_path / "a").list_files())
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("statements", "values", "kind", "reason"),
    [
        ("while True: pass", {"cpu_seconds": 1}, TooLarge, "more than 1 seconds of processor time"),
        ("bytearray(2**30)", {"memory_bytes": 2**28}, TooLarge, "more than 256 MiB of memory"),
        ("import time; time.sleep(60)", {}, TooLarge, "no result for 0.5 seconds"),
        ("os._exit(3)", {}, ParserCrashed, "ended with status 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", {}, ParserCrashed, "ended with signal 11"),
        ("{}['x']", {}, ParserCrashed, "failed with KeyError"),
        ("parser_process.write_photo(b'x'); os._exit(0)", {}, ParserCrashed, "ended with status 0"),
        ("sys.stdout.write('[' * 100); sys.stdout.flush(); os._exit(0)", {}, ParserCrashed, "ended with status 0"),
        (f"raise OSError({errno.ENOSPC}, '')", {}, Busy, "disk is full"),
        ("os.write(os.open(request.path, os.O_RDWR), b'x')", {}, OSError, "File too large"),
        ("[open('/dev/null') for _ in range(20)]", {}, OSError, "Too many open files"),
    ],
)
def test_each_limit_and_fault_of_a_parser_is_told(
    statements: str,
    values: dict[str, int],
    kind: type[Exception],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_task(monkeypatch, statements)
    silence_seconds = 0.5 if "sleep" in statements else 30
    request = make_request(tar(tmp_path / "a", FILES), **values)
    with pytest.raises(kind, match=reason) as raised:
        list(run_parser(request, silence_seconds, ignore))
    if isinstance(raised.value, AppError) and not isinstance(raised.value, Busy):
        assert raised.value.detail.startswith("the archive could not be read: ")
        assert raised.value.code in ("ArchiveTooLarge", "InvalidArchive")
    assert not list_parsers()


def test_a_pause_of_the_machine_does_not_count_as_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_task(monkeypatch, "import time; time.sleep(0.6)")
    checked_at: list[float] = []

    def pause_once() -> None:
        checked_at.append(time.monotonic())
        if len(checked_at) == 2:  # the first check comes before the first wait
            time.sleep(1.5)

    assert list(run_parser(make_request(tar(tmp_path / "a", FILES)), 1.0, pause_once)) == []
    assert len(checked_at) > 1


def test_a_parser_sees_no_settings_and_no_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIKENESS_DATABASE_URL", "postgresql://user:secret@host/name")
    statements = "parser_process.write_message({'entries': [sorted(os.environ), sorted(sys.modules)]})"
    replace_task(monkeypatch, statements)
    [(message, _)] = run_parser(make_request(tar(tmp_path / "a", FILES)), 30, ignore)
    variables, modules = message["entries"]
    own_variables = {"LC_CTYPE", "ORT_DISABLE_TELEMETRY", "__CF_USER_TEXT_ENCODING"}
    assert set(variables) <= {*parser_client.KEPT_VARIABLES, *own_variables}
    assert not {"numpy", "pydantic", "sqlalchemy", "joblib"} & set(modules)


def test_a_parser_is_stopped_when_the_job_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_task(monkeypatch, "import time; time.sleep(60)")
    stopped = threading.Event()

    def check() -> None:
        if stopped.is_set():
            raise KeyboardInterrupt

    threading.Timer(0.3, stopped.set).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(run_parser(make_request(tar(tmp_path / "a", FILES)), 60, check))
    assert time.monotonic() - began < 10
    assert not list_parsers()


def test_only_the_photo_that_kills_its_parser_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed(tmp_path / "a", {f"{n}.jpg": b"photo %d" % n for n in range(6)})
    files = open_files(path)
    entries = list(files.list_files())
    replace_task(
        monkeypatch,
        "from app.enrolment.archives.zips import Zip; read = Zip.read;"
        "Zip.read = lambda a, e, m: os._exit(9) if e.name in ('0.jpg', '3.jpg') else read(a, e, m);"
        "perform(request)",
    )
    photos = list(files.iterate_photos(entries))
    assert [p for p in photos if not isinstance(p, Unreadable)] == [b"photo 1", b"photo 2", b"photo 4", b"photo 5"]
    assert [isinstance(p, Unreadable) for p in photos] == [True, False, False, True, False, False]


def test_a_reader_that_is_killed_once_from_outside_loses_no_photo(tmp_path: Path) -> None:
    files = open_files(packed(tmp_path / "a", {f"{n}.jpg": os.urandom(300_000) for n in range(8)}))
    photos = files.iterate_photos(list(files.list_files()))
    read = [next(photos)]
    [parser] = list_parsers()
    parser.kill()
    read += photos
    assert [len(photo) for photo in read if isinstance(photo, bytes)] == [300_000] * 8


def test_a_photo_whose_parser_is_killed_before_it_reads_anything_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flag = packed(tmp_path / "a", {f"{n}.jpg": b"photo %d" % n for n in range(3)}), tmp_path / "killed"
    files = open_files(path)
    entries = list(files.list_files())
    replace_task(
        monkeypatch,
        f"killed = os.path.exists({str(flag)!r}); open({str(flag)!r}, 'a').close();"
        "perform(request) if killed else os.kill(os.getpid(), signal.SIGKILL)",
    )
    assert list(files.iterate_photos(entries)) == [b"photo 0", b"photo 1", b"photo 2"]


def test_a_request_survives_its_encoding(tmp_path: Path) -> None:
    request = make_request(tmp_path, task="read", entries=(Entry("ü\udc80", 1, 2, "file", (3, 4)),))
    assert ParserRequest.decode(request.encode()) == request


@pytest.mark.parametrize("kind", ["zip", "folder"])
def test_a_manifest_of_more_rows_than_an_archive_may_have_entries_is_refused(kind: str, tmp_path: Path) -> None:
    make = {"zip": packed, "folder": folder}[kind]
    lines = "file\n" + "".join(f"{n}.jpg\n" for n in range(101))
    files = open_files(make(tmp_path / "a", {"manifest.csv": lines.encode()}), max_import_entries=100)
    [entry] = files.list_files()
    with pytest.raises(TooLarge, match=r"manifest\.csv has more than 100 rows"):
        list(files.iterate_manifest_rows(entry))


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        ("os.write(1, b'[' * 5_000); import time; time.sleep(60)", "a result of more than 0 MiB"),
        ("os.close(1); import time; time.sleep(60)", "stopped in the middle"),
    ],
)
def test_a_parser_that_goes_on_without_a_result_is_stopped(
    statements: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parser_client, "MAX_LINE_BYTES", 1_000)
    monkeypatch.setattr(parser_client, "END_SECONDS", 0.2)
    replace_task(monkeypatch, statements)
    with pytest.raises(ParserCrashed, match=reason):
        list(run_parser(make_request(tar(tmp_path / "a", FILES)), 30, ignore))
    assert not list_parsers()
