"""What an erasure removes from results and problems of other collections' jobs that have read the erased faces."""

from typing import Any

import pytest

from app.db.session import reading, writing
from app.db.tables import Job
from app.galleries.erased_names import ErasedNames
from app.galleries.scrubbing import scrub_reports
from app.resources import Resources
from tests.gallery import enrol
from tests.workers.test_scrubbing import FACE, REQUESTED_AT, erased

BOUND_TO = {"other": 1.0, "staff": 2.0}
BODIES: list[dict[str, Any]] = [
    {"training": "t", "collection": "other", "bound_to": BOUND_TO},
    {"evaluation": "e", "bound_to": BOUND_TO},
]
ONLY_FACES: dict[str, Any] = {"subject": None, "names": frozenset()}


@pytest.fixture
def kept(resources: Resources) -> str:
    """The id of a face of the collection "other", which stays."""
    [face] = enrol(resources, "other", [1], shots=1)
    return face.face_id


def add_job(resources: Resources, body: dict[str, Any], faces: list[str]) -> str:
    """Store a job of the collection "other" that has named these faces, and return its id."""
    result = {"model": "m-1", "damaged_faces": {"count": len(faces), "face_ids": faces}}
    problem = {"code": "FacesFailed", "detail": f"faces that fail: {', '.join(faces)}", "face_ids": faces}
    with writing(resources.database) as session:
        job = Job(kind="train", body=body, collection_id="other", state="failed", created_at=REQUESTED_AT)
        job.result, job.problem = result, problem
        session.add(job)
        session.flush()
        return job.id


def scrub_job(resources: Resources, job: str, one: ErasedNames) -> tuple[Any, Any]:
    """Return the job's result and problem after an erasure."""
    scrub_reports(resources.database, [one])
    with reading(resources.database) as session:
        row = session.get_one(Job, job)
        return row.result, row.problem


@pytest.mark.parametrize("body", BODIES, ids=["training", "evaluation"])
@pytest.mark.parametrize("is_whole", [False, True], ids=["face", "collection"])
def test_a_job_that_has_read_the_collection_loses_the_ids_of_erased_faces(
    resources: Resources, kept: str, body: dict[str, Any], is_whole: bool
) -> None:
    job = add_job(resources, body, [FACE, kept])
    faces = {"faces": frozenset[str]()} if is_whole else {}
    result, problem = scrub_job(resources, job, erased(is_whole=is_whole, **ONLY_FACES, **faces))
    assert result == {"model": "m-1", "damaged_faces": {"count": 2, "face_ids": ["(erased)", kept]}}
    assert problem == {"code": "FacesFailed", "detail": "(erased)", "face_ids": ["(erased)", kept]}
    with reading(resources.database) as session:
        assert session.get_one(Job, job).body == body


@pytest.mark.parametrize("is_whole", [False, True], ids=["face", "collection"])
def test_a_job_that_has_not_read_the_collection_keeps_what_it_says(
    resources: Resources, kept: str, is_whole: bool
) -> None:
    body = {"training": "t", "collection": "other", "bound_to": {"other": 1.0, "staff.2": 2.0}}
    job = add_job(resources, body, [FACE, kept])
    result, problem = scrub_job(resources, job, erased(is_whole=is_whole, **ONLY_FACES))
    assert (result["damaged_faces"]["face_ids"], problem["face_ids"]) == ([FACE, kept], [FACE, kept])
