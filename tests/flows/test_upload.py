"""Imports over HTTP: every way to send many photos, and what is refused."""

import io
import socket
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.config import Settings
from app.queue.messages import ImportArchive
from tests.app.test_archives import pax_header
from tests.lost_commits import lose_commit
from tests.service import Service, run_service
from tests.workers.test_import import PEOPLE, picture

BASE = "/v1/collections/staff"
FILES = dict(list(PEOPLE.items())[:6])
JSON_TYPE = {"Content-Type": "application/json"}


def tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def form(data: bytes, headers: bytes = b"", end: bytes = b"--b--\r\n") -> dict[str, object]:
    """A form with one file; headers: further ones of its part; end: the last boundary."""
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.tar"\r\n' + headers + b"\r\n"
    return {
        "content": head + data + b"\r\n" + end,
        "headers": {"Content-Type": "multipart/form-data; boundary=b"},
    }


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder on the server."""
    for name, data in FILES.items():
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(data)
    return tmp_path / "photos"


@pytest.fixture
def staff(settings: Settings, photos: Path) -> Iterator[Service]:
    """A service with the collection `staff`, that allows the folder of photos."""
    with run_service(settings.model_copy(update={"import_roots": (photos.parent,)})) as service:
        service.client.put(BASE).raise_for_status()
        yield service


def send_import(service: Service, **request: object) -> httpx.Response:
    return service.client.post(f"{BASE}:import", params={"aligned": True}, **request)  # type: ignore[arg-type]


def test_every_archive_format_and_transport_enrols_the_same_photos(staff: Service, photos: Path) -> None:
    ways: dict[str, dict[str, object]] = {
        "form": {"files": {"file": ("a.tar", tar(FILES))}},
        "form made by hand": form(tar(FILES)),
        "tar": {"content": tar(FILES), "headers": {"Content-Type": "application/x-tar"}},
        "tar.gz": {"content": tar(FILES, "w:gz"), "headers": {"Content-Type": "application/gzip"}},
        "zip": {"content": zipped(FILES), "headers": {"Content-Type": "application/zip"}},
        "no type": {"content": zipped(FILES)},
        "folder": {"json": {"directory": str(photos)}},
    }
    for way, request in ways.items():
        answer = send_import(staff, **request)
        job = staff.wait(answer)
        assert (job["state"], job["progress"]) == ("succeeded", {"done": 6, "total": 6, "failed": 0}), (way, job)
        assert answer.headers["Location"] == f"/v1/jobs/{job['id']}"
        items = staff.client.get(f"/v1/jobs/{job['id']}/items").json()["items"]
        assert sorted(i["name"] for i in items) == sorted(FILES)
    shown = staff.client.get(BASE).json()
    assert (shown["face_count"], shown["subject_count"]) == (6, 6)
    assert not list(staff.resources.uploads.iterdir())
    assert photos.is_dir()


def test_the_items_of_an_import_list_the_refused_files(staff: Service) -> None:
    files = {**FILES, "p9/notes.txt": b"no photo", "p9/cut.png": picture(50)[:-300]}
    job = staff.wait(send_import(staff, content=tar(files)))
    assert job["progress"] == {"done": 6, "total": 8, "failed": 2}
    assert (job["result"]["enrolled"], job["result"]["refused"]) == (6, 2)
    items = staff.client.get(f"/v1/jobs/{job['id']}/items", params={"state": "failed"}).json()["items"]
    assert {i["name"]: i["reasons"] for i in items} == {
        "p9/notes.txt": ["InvalidImageFormat"],
        "p9/cut.png": ["InvalidImageFormat"],
    }


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_an_archive_whose_commit_got_no_answer_is_imported(staff: Service) -> None:
    """The repeat gets the stored answer, and what was uploaded first is still there."""
    headers = {"Idempotency-Key": "once"}
    with lose_commit("INSERT INTO jobs", ImportArchive.kind) as lost:
        refused = send_import(staff, content=tar(FILES), headers=headers)
    assert lost
    assert refused.status_code == 503
    repeated = send_import(staff, content=tar(FILES), headers=headers)
    assert repeated.headers["Idempotent-Replayed"] == "true"
    assert staff.wait(repeated)["state"] == "succeeded"
    assert not list(staff.resources.uploads.iterdir())


def test_what_an_archive_holds_is_judged_by_the_job_not_by_the_request(staff: Service) -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/bomb.png", bytes(30 * 2**20))
    digits = pax_header(b"1" * 900_000) + tar(FILES)
    refused = [
        ("InvalidArchive", 422, "leads out of the archive by '..'", tar({**FILES, "../evil.png": b"x"})),
        ("InvalidArchive", 422, "has an absolute path", zipped({**FILES, "/etc/evil.png": b"x"})),
        ("InvalidArchive", 422, "it is cut short", tar(FILES)[:30_000]),
        ("InvalidArchive", 422, "the header at byte 0 has 900,000 bytes", digits),
        ("ArchiveTooLarge", 413, "200 times its packed size", bomb.getvalue()),
    ]
    for code, status, phrase, content in refused:
        began = time.monotonic()
        answer = send_import(staff, content=content)
        assert (answer.status_code, time.monotonic() - began < 5) == (202, True), answer.text
        job = staff.wait(answer)
        problem = job["problem"]
        assert (job["state"], problem["code"], problem["status"]) == ("failed", code, status)
        assert phrase in problem["detail"]
    assert not list(staff.resources.uploads.iterdir())
    assert staff.client.get(BASE).json()["face_count"] == 0


def test_a_hostile_or_broken_upload_is_refused_and_nothing_is_stored(staff: Service, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "circle").symlink_to("circle")
    refused: list[tuple[int, str, dict[str, object]]] = [
        (422, "InvalidArchive", {"content": b"no archive at all"}),
        (422, "InvalidArchive", {"content": b""}),
        (422, "InvalidParameter", {"files": {"photos": tar(FILES)}}),
        (422, "InvalidParameter", {"files": [("file", tar(FILES)), ("file", tar(FILES))]}),
        (422, "InvalidRequest", form(tar(FILES), end=b"")),
        (422, "InvalidRequest", form(tar(FILES), headers=b"X-Filler: %s\r\n" % (b"x" * 100_000))),
        (422, "InvalidRequest", {"content": b"--x", "headers": {"Content-Type": "multipart/form-data; boundary=x"}}),
        (422, "InvalidRequest", {"content": b"--x", "headers": {"Content-Type": "multipart/form-data"}}),
        (422, "InvalidParameter", {"json": {"directory": ""}}),
        (422, "InvalidParameter", {"content": b"{", "headers": JSON_TYPE}),
        (422, "InvalidParameter", {"json": {"directory": str(tmp_path / "none")}}),
        (422, "InvalidParameter", {"json": {"directory": f"{tmp_path}/a\0b"}}),
        (422, "InvalidParameter", {"json": {"directory": f"{tmp_path}/{'x' * 300}"}}),
        (422, "InvalidParameter", {"json": {"directory": str(tmp_path / "circle" / "x")}}),
        (422, "InvalidParameter", {"content": b'{"directory": "/\\ud800"}', "headers": JSON_TYPE}),
        (403, "AccessDenied", {"json": {"directory": "/etc"}}),
        (403, "AccessDenied", {"json": {"directory": str(tmp_path / "link")}}),
        (403, "AccessDenied", {"json": {"directory": str(tmp_path / ".." / "..")}}),
    ]
    for status, code, request in refused:
        answer = send_import(staff, **request)
        assert (answer.status_code, answer.json()["code"]) == (status, code), (request, answer.text)
    assert staff.client.post("/v1/collections/none:import", content=tar(FILES)).status_code == 404
    assert staff.client.post(f"{BASE}:import", params={"role": "hero"}, content=tar(FILES)).status_code == 422
    assert not list(staff.resources.uploads.iterdir())
    assert "import" not in {job["kind"] for job in staff.client.get("/v1/jobs").json()["jobs"]}
    assert staff.client.get(BASE).json()["face_count"] == 0


def test_an_import_is_refused_before_its_body_is_sent(staff: Service) -> None:
    keys = {
        401: {},
        403: staff.key("reader"),
        413: staff.key("operator"),
    }
    for status, key in keys.items():
        lines = [f"POST {BASE}:import HTTP/1.1", "Host: x", f"Content-Length: {2**40}"]
        lines += [f"{name}: {value}" for name, value in key.items()]
        assert f" {status} " in read_status_line(staff.url, "\r\n".join([*lines, "", ""]))
    bound = staff.key("operator", "other")
    assert staff.client.post(f"{BASE}:import", content=tar(FILES), headers=bound).status_code == 404


def read_status_line(url: str, head: str) -> str:
    """The first line that a server answers to a head without its body."""
    address = httpx.URL(url)
    with socket.create_connection((address.host, address.port or 80), timeout=10) as wire:
        wire.sendall(head.encode())
        return wire.recv(4096).splitlines()[0].decode()


def test_an_interrupted_upload_leaves_no_file_and_is_no_failure_of_the_service(
    staff: Service, caplog: pytest.LogCaptureFixture
) -> None:
    address = httpx.URL(staff.url)
    key = staff.key("operator")["Authorization"]
    with socket.create_connection((address.host, address.port or 80), timeout=10) as wire:
        head = [f"POST {BASE}:import HTTP/1.1", "Host: x", f"Authorization: {key}", "Content-Length: 9000000", "", ""]
        wire.sendall("\r\n".join(head).encode() + bytes(3_000_000))
        wait_until(lambda: bool(list(staff.resources.uploads.iterdir())))
        [upload] = staff.resources.uploads.iterdir()
        process = upload.name.partition("-")[0]
        assert (staff.resources.audit / f"{process}.lock").exists(), "its name says who receives it"
    wait_until(lambda: not list(staff.resources.uploads.iterdir()))
    wait_until(lambda: 'status="422"' in read_import_requests(staff))
    assert 'status="500"' not in read_import_requests(staff)
    assert "request.failed" not in caplog.text


def read_import_requests(service: Service) -> str:
    """The metrics that count requests for imports."""
    lines = service.client.get("/metrics").text.splitlines()
    return "\n".join(line for line in lines if line.startswith("likeness_requests_total") and ":import" in line)


def test_two_simultaneous_imports_succeed_while_faces_are_listed(staff: Service) -> None:
    files = [{f"q{n}/{n}.png": picture(1000 * part + n) for n in range(30)} for part in range(2)]
    jobs = [send_import(staff, content=tar(f)) for f in files]
    failures: list[httpx.Response] = []
    stop = threading.Event()

    def list_faces() -> None:
        while not stop.wait(0.05):
            answer = staff.client.get(f"{BASE}/faces", params={"limit": 5})
            if answer.status_code != 200:
                failures.append(answer)

    thread = threading.Thread(target=list_faces)
    thread.start()
    try:
        ended = [staff.wait(job) for job in jobs]
    finally:
        stop.set()
        thread.join()
    assert [job["state"] for job in ended] == ["succeeded", "succeeded"]
    assert not failures
    shown = staff.client.get(BASE).json()
    assert (shown["face_count"], shown["subject_count"]) == (60, 30)


def wait_until(true: object, seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.02)
