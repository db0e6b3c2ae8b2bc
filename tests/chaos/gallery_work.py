"""Work on the gallery: imports, deletions and labels."""

import io
import tarfile
import time
import zipfile
from typing import Any

from ml import images
from ml.synthetic_faces import draw, person
from tests.chaos.workload import COLLECTION, ON_DEFAULT, Work, Workload, read_job_path

PHOTOS_PER_PERSON = 5
VECTOR_BYTES = 128
"""Of each embedding, what is searched for after an erasure."""
FINAL_SECONDS = LABEL_SECONDS = 120.0
MAX_CHECKED_PAIRS = 6
BASE = f"/v1/collections/{COLLECTION}"


def name_person(number: int) -> str:
    """No name is a part of another, so that one can be searched for after an erasure."""
    return f"chaos-person-{number:05d}"


def is_nameless(number: int) -> bool:
    """Whether the photos of a person lie at the top of the archive, so that their faces have no subject."""
    return number % 3 == 2


def start_ingest(workload: Workload, people: int = 0) -> Work:
    """Import some people. A number that is not given is drawn."""
    return _start_import(workload, people or workload.rng.randint(4, 12), "zip", ON_DEFAULT)


def start_parsing(workload: Workload) -> Work:
    """Import an archive whose parser is killed: it is listed again, or read on by another parser."""
    return _start_import(workload, workload.rng.randint(8, 16), workload.rng.choice(["zip", "tar.gz"]), ("parser",))


def _start_import(workload: Workload, people: int, packing: str, victims: tuple[str, ...]) -> Work:
    numbers = range(workload.people, workload.people + people)
    workload.people += people
    photos = {
        f"{name_person(i)}{'-' if is_nameless(i) else '/'}{photo}.png": images.encode_png(draw(person(i), photo))
        for i in numbers
        for photo in range(PHOTOS_PER_PERSON)
    }
    before = workload.count_faces()
    body: dict[str, Any] = {"params": {"aligned": "true"}, "content": pack_photos(photos, packing)}
    answer = workload.send("face.import", "POST", f"{BASE}:import", **body)

    def check(job: dict[str, Any]) -> None:
        assert job["state"] == "succeeded", job
        assert (job["progress"]["done"], job["progress"]["failed"]) == (len(photos), 0), job
        assert workload.count_faces() == before + len(photos)

    return Work(check, read_job_path(answer), victims)


def pack_photos(photos: dict[str, bytes], packing: str = "zip") -> bytes:
    """Pack photos by their paths into an archive."""
    packed = io.BytesIO()
    if packing == "zip":
        with zipfile.ZipFile(packed, "w") as zipped:
            for name, data in photos.items():
                zipped.writestr(name, data)
    else:
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name, data in photos.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def start_erasing_face(workload: Workload) -> Work:
    """Delete one face, while processes are killed."""
    faces = workload.service.query("select face_id from faces where collection_id = ? order by pk", COLLECTION)
    [face] = workload.rng.choice(faces)
    return _start_erasing(workload, f"{BASE}/faces/{face}", "face.delete", "faces.face_id = ?", face, [])


def start_erasing_subject(workload: Workload) -> Work:
    """Delete one subject with all faces, while processes are killed."""
    subjects = workload.service.query(
        "select id from subjects where collection_id = ? and pk in (select subject_pk from faces) order by pk",
        COLLECTION,
    )
    [subject] = workload.rng.choice(subjects)
    path = f"{BASE}/subjects/{subject}"
    return _start_erasing(workload, path, "subject.delete", "subjects.id = ?", subject, [subject.encode()])


def _start_erasing(workload: Workload, path: str, action: str, where: str, value: str, names: list[bytes]) -> Work:
    service, before = workload.service, workload.count_faces()
    rows = service.query(
        "select distinct face_id, image_id, vector from faces left join subjects on subjects.pk = subject_pk"
        f" join embeddings on face_pk = faces.pk where {where} and faces.collection_id = ?",
        value,
        COLLECTION,
    )
    erased = {face for face, _, _ in rows}
    assert erased
    patterns = [*names, *(image.encode() for _, image, _ in rows), *(vector[:VECTOR_BYTES] for *_, vector in rows)]
    workload.erased += 1
    workload.separated = [pair for pair in workload.separated if not erased & set(pair)]

    def check(_: dict[str, Any]) -> None:
        wait_until_erased(workload)
        assert workload.count_faces() == before - len(erased)
        contents = {path: path.read_bytes() for path in service.home.rglob("*") if path.is_file()}
        left = [(str(path), n) for path, data in contents.items() for n, p in enumerate(patterns) if p in data]
        assert left == [], f"{len(erased)} erased faces left traces"

    return Work(check, request=workload.begin_request(action, "DELETE", path))


def wait_until_erased(workload: Workload) -> None:
    """Wait until every erasure that was requested is final, and no other exists."""
    until, counted = time.monotonic() + FINAL_SECONDS, "select count(*) from erasures"
    while workload.count(f"{counted} where state = 'final' and signature != ''") != workload.erased:
        assert time.monotonic() < until, workload.service.query("select id, state, targets from erasures")
        time.sleep(0.1)
    assert workload.count(counted) == workload.erased, "a deletion was recorded twice"


def start_labelling(workload: Workload) -> Work:
    """Say of two faces of one person, and of two people, that they are not the same: no search returns them."""
    rows = workload.service.query(
        "select subject_pk, min(face_id), max(face_id) from faces where collection_id = ? and subject_pk is not null"
        " group by subject_pk having count(*) > 1 order by subject_pk",
        COLLECTION,
    )
    (_, first, second), (_, other, _) = workload.rng.sample(rows, 2)
    known = set(workload.separated)
    pairs = [pair for pair in ((first, second), (first, other)) if pair not in known and pair[::-1] not in known]
    labels = [{"face_a": a, "face_b": b, "same": False, "by": "ana"} for a, b in pairs]
    if labels:
        answer = workload.send("label.add", "POST", "/v1/labels", json={"labels": labels})
        assert answer.json()["accepted"] == len(labels)
    workload.separated += pairs

    def check(_: dict[str, Any]) -> None:
        check_labels(workload)

    return Work(check, victims=("default", "api", "api", "all"))


def check_labels(workload: Workload) -> None:
    """Check that each label is stored once, and that the last of them act."""
    assert workload.count("select count(*) from labels") == len(workload.separated)
    workload.service.wait_until_ready()
    until = time.monotonic() + LABEL_SECONDS
    for face, other in workload.separated[-MAX_CHECKED_PAIRS:]:
        while other in _list_matches(workload, face):
            assert time.monotonic() < until, f"{face} and {other} still match"
            time.sleep(0.1)


def _list_matches(workload: Workload, face: str) -> list[str]:
    params = {"limit": 4096, "group_by": "face"}
    answer = workload.service.client.post(f"{BASE}/faces/{face}/search", params=params)
    return [match["face_id"] for match in answer.raise_for_status().json()["faces"][0]["matches"]]
