"""The memory that requests with photos take is bounded, and returns to the system."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.allocator import MAX_HEAPS
from app.deps import held_bytes, photos
from app.deps.held_bytes import HeldBytes
from app.errors import Busy
from app.serving.limits import photo_admission
from app.serving.limits.photo_admission import LARGE_PHOTO_PIXELS, MAX_WAITING_PHOTOS, PhotoAdmission
from ml.images import OpenedPhoto, encode_png
from ml.types import Image
from tests.service import Service

LARGE = LARGE_PHOTO_PIXELS + 1
TRY_ALLOCATOR = """
import psutil
from app.allocator import tune_allocator
assert not {is_tuned} or tune_allocator()
bytearray(30 * 2**20)  # freed at once: unless it is set, the threshold of large blocks rises to its size
before = psutil.Process().memory_info().rss
blocks = [(bytearray(20 * 2**20), bytearray(50_000)) for _ in range(10)]
pins = [pin for _, pin in blocks]
del blocks
print((psutil.Process().memory_info().rss - before) // 2**20)
"""

COUNT_HEAPS = """
import ctypes, os, threading
from app.allocator import tune_allocator
assert not {is_tuned} or tune_allocator()
barrier, libc = threading.Barrier(9), ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p

def allocate():
    libc.malloc(10_000)
    barrier.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
barrier.wait()
file = ctypes.c_void_p(libc.fopen(b"{path}", b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


def test_photos_beyond_the_limit_wait_and_small_ones_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photo_admission, "MAX_WAIT_SECONDS", 0.05)
    admission = PhotoAdmission(3 * LARGE)
    full = admission.reserve(2 * LARGE), admission.reserve(LARGE)
    with full[0], full[1], admission.reserve(LARGE_PHOTO_PIXELS), pytest.raises(Busy), admission.reserve(LARGE):
        pass
    with admission.reserve(100 * LARGE), pytest.raises(Busy), admission.reserve(LARGE):
        pass
    with admission.reserve(3 * LARGE):
        pass


def test_a_photo_that_waits_is_admitted_when_another_is_done() -> None:
    admission, is_admitted = PhotoAdmission(LARGE), threading.Event()

    def wait() -> None:
        with admission.reserve(LARGE):
            is_admitted.set()

    with admission.reserve(LARGE):
        thread = threading.Thread(target=wait)
        thread.start()
        assert not is_admitted.wait(0.05)
    assert is_admitted.wait(5)
    thread.join()


def test_only_few_photos_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photo_admission, "MAX_WAIT_SECONDS", 2.0)
    admission, seconds = PhotoAdmission(LARGE), []

    def wait() -> None:
        started = time.monotonic()
        with pytest.raises(Busy), admission.reserve(LARGE):
            pass
        seconds.append(time.monotonic() - started)

    threads = [threading.Thread(target=wait) for _ in range(MAX_WAITING_PHOTOS + 3)]
    with admission.reserve(LARGE):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(waited < 1 for waited in seconds) == 3


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_large_photo_that_finds_no_room_is_answered_with_503(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.client.put("/v1/collections/staff", json={})
    decode = OpenedPhoto.decode

    def decode_slowly(photo: OpenedPhoto) -> Image:
        time.sleep(1)
        return decode(photo)

    monkeypatch.setattr(OpenedPhoto, "decode", decode_slowly)
    photo = encode_png(np.zeros((16_384, 2_000, 3), np.uint8))

    def search(_: int) -> httpx.Response:
        return service.client.post("/v1/collections/staff/search", files={"file": photo})

    with ThreadPoolExecutor(2) as pool:
        answers = sorted(pool.map(search, range(2)), key=lambda answer: answer.status_code)
    assert [answer.status_code for answer in answers] == [422, 503]
    assert answers[1].json()["code"] == "Throttling"
    assert answers[1].headers["Retry-After"] == "1"


def test_requests_share_the_bytes_that_may_be_held() -> None:
    held = HeldBytes(100)
    with held.open_share() as first, held.open_share() as second:
        first.add(60)
        second.add(40)
        with pytest.raises(Busy):
            first.add(1)
    assert held.count == 0


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_photo_is_answered_with_503_while_too_many_bytes_are_held(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.client.put("/v1/collections/staff", json={})
    small = HeldBytes(1_000)
    monkeypatch.setattr(photos, "PHOTO_BYTES", small)
    for body in ({"files": {"file": bytes(5_000)}}, {"json": {"image": "A" * 5_000}}):
        answer = service.client.post("/v1/collections/staff/search", **body)  # type: ignore[arg-type]
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert small.count == 0
    monkeypatch.setattr(photos, "PHOTO_BYTES", held_bytes.PHOTO_BYTES)
    assert service.client.post("/v1/collections/staff/search", files={"file": bytes(5_000)}).status_code == 422
    assert held_bytes.PHOTO_BYTES.count == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs the GNU C library")
@pytest.mark.parametrize(("is_tuned", "is_returned"), [(True, True), (False, False)])
def test_large_blocks_return_to_the_system(is_tuned: bool, is_returned: bool) -> None:
    script = TRY_ALLOCATOR.format(is_tuned=is_tuned)
    kept = int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout)
    assert (kept < 40) == is_returned, kept


@pytest.mark.skipif(sys.platform != "linux", reason="needs the GNU C library")
@pytest.mark.parametrize(("is_tuned", "is_bounded"), [(True, True), (False, False)])
def test_threads_share_few_heaps(tmp_path: Path, is_tuned: bool, is_bounded: bool) -> None:
    script = COUNT_HEAPS.format(is_tuned=is_tuned, path=tmp_path / "heaps.xml")
    subprocess.run([sys.executable, "-c", script], check=True)
    count = (tmp_path / "heaps.xml").read_text().count("<heap nr=")
    assert (count <= MAX_HEAPS) == is_bounded, count
