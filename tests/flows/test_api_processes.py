"""Two API processes on one port: what one of them was told, the other knows within a second."""

import os
import random
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from ml import images
from ml.synthetic_faces import draw, person
from tests.conftest import create_database
from tests.npy import draw_people, to_npy
from tests.raw_http import find_free_port
from tests.service_subprocess import ServiceSubprocess

COLLECTION = "/v1/collections/photos"
IMPORTED = "imported"
IMPORTED_COLLECTION = f"/v1/collections/{IMPORTED}"
MAX_SECONDS = 1.0
MAX_ATTEMPTS = 100
WRITES = int(os.environ.get("CONCURRENT_WRITES", 160))
WRITERS = min(WRITES, int(os.environ.get("CONCURRENT_WRITERS", 16)))
DIM = 8


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceSubprocess]:
    """On SQLite, and on PostgreSQL with Redis. All tests share it, since a start takes seconds of processor time."""
    url = next(database := create_database(request))
    addresses = {"database_url": url} if url else {}
    if url and shutil.which("redis-server"):
        addresses["redis_url"] = request.getfixturevalue("redis_url")
    started = ServiceSubprocess(tmp_path_factory.mktemp("home"), find_free_port(), api_processes="2", **addresses)
    yield started
    started.stop()
    next(database, None)


@pytest.fixture
def clients(service: ServiceSubprocess) -> Iterator[list[httpx.Client]]:
    """A client for each of the processes, with a connection that stays open."""
    opened: dict[int, httpx.Client] = {}
    for _ in range(MAX_ATTEMPTS):
        client = httpx.Client(base_url=service.client.base_url, headers=service.client.headers, timeout=30)
        process = find_process(service, client)
        if process in opened:
            client.close()
        opened.setdefault(process, client)
        if len(opened) == 2:
            break
    yield list(opened.values())
    for client in opened.values():
        client.close()


def find_process(service: ServiceSubprocess, client: httpx.Client) -> int:
    """Return the process that has the connection of a client."""
    with client.stream("GET", "/livez") as answer:
        port = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
        answer.read()
    [process] = [
        api.pid
        for api in service.list_processes("api")
        for connection in api.net_connections("tcp")
        if connection.raddr and connection.raddr.port == port
    ]
    return process


def wait_for(condition: Callable[[], Any]) -> float:
    """Wait until something is true, and return the seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < 30, "it did not happen"
        time.sleep(0.02)
    return time.monotonic() - began


def enrol(client: httpx.Client, name: str, photo: bytes) -> str:
    answer = client.post(
        f"{COLLECTION}/faces", data={"external_image_id": name, "aligned": "true"}, files={"file": photo}
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["face_records"][0]["face_id"])


def search(client: httpx.Client, photo: bytes) -> set[str]:
    """Return the faces that a search finds; none while the index is being loaded."""
    answer = client.post(f"{COLLECTION}/search", params={"aligned": "true"}, files={"file": photo})
    assert answer.status_code in (200, 503), answer.text
    return {m["face_id"] for face in answer.json().get("faces", []) for m in face["matches"]}


def test_what_one_process_was_told_the_other_knows_within_a_second(
    service: ServiceSubprocess, clients: list[httpx.Client]
) -> None:
    first, second = clients
    photo, other_photo = (images.encode_png(draw(person(i), 0)) for i in range(2))
    first.put(COLLECTION).raise_for_status()
    enrolled = enrol(first, "one", photo)
    wait_for(lambda: search(first, photo) and search(second, photo))  # both have loaded the index
    added = enrol(first, "two", other_photo)
    assert wait_for(lambda: added in search(second, photo)) < MAX_SECONDS
    second.delete(f"{COLLECTION}/faces/{added}").raise_for_status()
    assert wait_for(lambda: search(first, photo) == {enrolled}) < MAX_SECONDS
    key = first.post("/v1/keys", json={"role": "reader", "name": "short"}).json()
    headers = {"x-api-key": key["key"]}
    assert {client.get("/v1/collections", headers=headers).status_code for client in clients} == {200}
    first.delete(f"/v1/keys/{key['id']}").raise_for_status()
    assert wait_for(lambda: second.get("/v1/collections", headers=headers).status_code == 401) < MAX_SECONDS


def test_a_repeated_request_is_carried_out_once(service: ServiceSubprocess, clients: list[httpx.Client]) -> None:
    answers = [
        client.post("/v1/keys", json={"role": "reader", "name": "once"}, headers={"Idempotency-Key": "k"})
        for client in clients
    ]
    assert [answer.status_code for answer in answers] == [201, 409]
    assert [key["name"] for key in service.client.get("/v1/keys").json()["keys"]].count("once") == 1


def test_each_process_reports_what_all_have_counted(clients: list[httpx.Client]) -> None:
    pattern = r'likeness_requests_total\{[^}]*"/v1/keys"[^}]*\} (\S+)'

    def count_requests() -> list[float]:
        return [sum(map(float, re.findall(pattern, client.get("/metrics").text))) for client in clients]

    before, repeated = count_requests()
    assert before == repeated
    for client in clients:
        for _ in range(3):
            client.get("/v1/keys").raise_for_status()
    wait_for(lambda: count_requests() == [before + 6] * 2)  # a request is counted after its answer is sent
    waiting = [re.findall(r'likeness_requests_waiting\{process="([^"]+)"\}', c.get("/metrics").text) for c in clients]
    assert waiting[0] != waiting[1]


def test_connections_are_shared_out(service: ServiceSubprocess) -> None:
    opened = [
        httpx.Client(base_url=service.client.base_url, headers=service.client.headers, verify=False) for _ in range(16)
    ]
    counts = Counter(find_process(service, client) for client in opened)
    for client in opened:
        client.close()
    assert len(counts) == 2
    assert min(counts.values()) >= 2, counts


def import_people(service: ServiceSubprocess, count: int, photos: int) -> list[float]:
    """Import the vectors of people, wait until they are enrolled, and return one of the vectors."""
    external = {"name": "drawn", "dim": DIM, "metric": "l2"}
    service.client.put(IMPORTED_COLLECTION, json={"descriptor": {"external": external}}).raise_for_status()
    rows, subjects = draw_people(count, photos, DIM)
    files = {"vectors": to_npy(rows), "table": "\n".join(["subject", *subjects]).encode()}
    accepted = service.client.post(f"{IMPORTED_COLLECTION}/faces:import-embeddings", files=files).raise_for_status()
    assert service.wait_for_job(accepted.headers["Location"])["state"] == "succeeded"
    return [float(number) for number in rows[0]]


def list_faces(client: httpx.Client) -> dict[str, Any]:
    """Return the subject of each face by the tables."""
    faces, token = {}, None
    while True:
        params = {"limit": 1000} | ({} if token is None else {"next_token": token})
        page = client.get(f"{IMPORTED_COLLECTION}/faces", params=params).raise_for_status().json()
        faces |= {face["face_id"]: face["subject"] for face in page["faces"]}
        token = page["next_token"]
        if token is None:
            return faces


def search_faces(client: httpx.Client, vector: list[float]) -> dict[str, Any]:
    """Return the subject of each face by the index and the names in memory."""
    params = {"limit": 4096, "group_by": "face"}
    answer = client.post(f"{IMPORTED_COLLECTION}/search:by-embedding", params=params, json={"vector": vector})
    answer.raise_for_status()
    return {match["face_id"]: match["subject"] for match in answer.json()["faces"][0]["matches"]}


def count_vectors(client: httpx.Client) -> int:
    """Return the number of vectors in the index of one process, which holds no model but the champion."""
    deployments = client.get("/info").json()["deployments"]
    [deployment] = [found for found in deployments if found["collection"] == IMPORTED]
    assert len(deployment["held"]) == 1
    return int(deployment["vectors"])


def write_at_random(client: httpx.Client, faces: list[str], writes: int, seed: int, refused: list[str]) -> None:
    """Rename, move and delete the faces of one writer; what is refused while the service is busy is sent again."""
    draw = random.Random(seed)
    for number in range(writes):
        kind = draw.choice(["rename", "move", "delete"]) if len(faces) > 1 else "rename"
        face = draw.choice(faces)
        name = f"w{seed}-{draw.randrange(3)}"
        for _ in range(MAX_ATTEMPTS):
            if kind == "delete":
                answer = client.delete(f"{IMPORTED_COLLECTION}/faces/{face}")
            elif kind == "move":
                answer = client.patch(f"{IMPORTED_COLLECTION}/faces/{face}", json={"subject": name})
            else:
                answer = client.put(f"{IMPORTED_COLLECTION}/subjects/{name}", json={"external_id": f"{name} {number}"})
            if answer.status_code != 503:
                break
            time.sleep(0.05)
        if answer.status_code >= 300:
            refused.append(answer.text)
        elif kind == "delete":
            faces.remove(face)


def test_after_many_concurrent_writes_indexes_tables_and_names_agree(
    service: ServiceSubprocess, clients: list[httpx.Client]
) -> None:
    vector = import_people(service, 2 * WRITERS, 6)
    for client in clients:
        wait_for(lambda client=client: search_faces(client, vector) == list_faces(client))
    faces, refused = list(list_faces(service.client)), list[str]()
    threads, opened = list[threading.Thread](), list[httpx.Client]()
    for seed in range(WRITERS):
        opened.append(httpx.Client(base_url=service.client.base_url, headers=service.client.headers, timeout=60))
        work = (opened[-1], faces[seed::WRITERS], WRITES // WRITERS, seed, refused)
        threads.append(threading.Thread(target=write_at_random, args=work))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in opened:
        client.close()
    assert not refused
    expected = list_faces(service.client)
    assert {subject["id"][0] for subject in expected.values()} == {"w", "p"}, "some were moved, and some were not"
    assert 0 < len(expected) < len(faces)
    for client in clients:
        wait_for(lambda client=client: search_faces(client, vector) == expected)
        # an answer leaves deleted faces out before they are removed from the index
        wait_for(lambda client=client: count_vectors(client) == len(expected))
    service.wait_until_ready()
