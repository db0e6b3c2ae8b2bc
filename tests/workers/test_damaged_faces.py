"""Jobs leave faces with damaged crops out, and name them; too many damaged faces fail the job."""

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from app.db.session import reading, writing
from app.db.tables import DamagedFace, Embedding, Evaluation, Face, Job, Training
from app.learning.evaluation_request import EvaluationRequest
from app.learning.plan import ComponentChoice, Plan, Source
from app.publishing.pointers import has_all_embeddings
from app.queue.jobs import enqueue
from app.queue.messages import Evaluate, Message, Publish, Sweep, Train
from app.resources import Resources
from app.serving.index_builder import IndexKey, count_rows
from app.storage.blob_store import Blobs
from app.storage.model_cache import LBP_MODEL
from app.storage.stored_faces import CropsDamaged
from ml.model import Recipe
from tests import gallery
from tests.gallery import crops
from tests.rows import make_model
from workers.context import JobContext
from workers.description import describe_faces
from workers.worker import Worker

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

Damage = Callable[[Path], object]
enrol = partial(gallery.enrol, in_segments=False)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:400])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def crop_path(resources: Resources, face: Face, kind: str = "grey") -> Path:
    return resources.blobs.root / f"c-{face.collection_id}" / Blobs.crop(face.image_id, face.number, kind)  # type: ignore[arg-type]


def run(resources: Resources, message: Message) -> Job:
    """Have a worker run the job, as often as it is put back."""
    with writing(resources.database) as session:
        job_id = enqueue(session, message).id
    worker = Worker(resources, message.queue)
    for _ in range(200):
        worker.step()
        with reading(resources.database) as session:
            job = session.get_one(Job, job_id)
        if job.finished_at:
            return job
        worker.stopping.wait(0.02)
    raise AssertionError(f"the job did not end: {job.state}")


def train(resources: Resources) -> Job:
    plan = Plan(
        collection="c", method="wpca", descriptors=(ComponentChoice(name="lbp"),), options={"dim": 4},
        sources=(Source(origin="subjects"),), holdout=0.3,
    )  # fmt: skip
    with writing(resources.database) as session:
        training = Training(request=plan.model_dump(mode="json", by_alias=True))
        session.add(training)
        session.flush()
        name = training.id
    return run(resources, Train(training=name, collection="c"))


def list_marked(resources: Resources) -> list[tuple[int, str]]:
    with reading(resources.database) as session:
        rows = session.execute(select(DamagedFace.face_pk, DamagedFace.reason).order_by(DamagedFace.face_pk))
        return [(pk, reason) for pk, reason in rows]


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, Path.unlink])
def test_a_training_goes_on_without_a_damaged_face_and_names_it(resources: Resources, damage: Damage) -> None:
    faces = enrol(resources, "c", range(8), shots=3)
    damage(crop_path(resources, faces[4]))
    damage(crop_path(resources, faces[9]))
    job = train(resources)
    assert job.state == "succeeded", job.problem
    assert job.result is not None
    assert job.result["damaged_faces"] == {"count": 2, "face_ids": [faces[4].face_id, faces[9].face_id]}
    assert job.result["report"]["faces"] == 22
    assert [pk for pk, _ in list_marked(resources)] == [faces[4].pk, faces[9].pk]
    again = train(resources)
    assert again.state == "succeeded"
    assert again.started_at is not None
    assert again.tries == 1


def test_an_undamaged_collection_has_nothing_to_name(resources: Resources) -> None:
    enrol(resources, "c", range(8), shots=3)
    result = train(resources).result
    assert result is not None
    assert "damaged_faces" not in result


@pytest.mark.parametrize("damage", [truncate, flip_a_bit])
def test_a_publication_leaves_the_face_out_and_the_index_still_agrees(resources: Resources, damage: Damage) -> None:
    faces = enrol(resources, "c", range(4), shots=3)
    damage(crop_path(resources, faces[5]))
    with writing(resources.database) as session:
        resources.models.keep(session, make_model("m1"))
    job = run(resources, Publish(collection="c", tasks=("identity",), model="m1", override=True, reason="a test"))
    assert job.state == "succeeded", job.problem
    assert job.result is not None
    assert job.result["damaged_faces"] == {"count": 1, "face_ids": [faces[5].face_id]}
    with reading(resources.database) as session:
        embedded = session.scalar(select(func.count()).where(Embedding.model_id == "m1"))
        assert embedded == 11
        assert has_all_embeddings(session, "c", "m1", ["identity"])
        assert count_rows(session, IndexKey("c", "identity", "m1", 0.0)) == (11, 11)
        assert count_rows(session, IndexKey("c", "identity", LBP_MODEL, 0.0)) == (12, 12)


@pytest.mark.parametrize("training", [None, {"method": "wpca", "options": {"dim": 4}}])
def test_an_evaluation_leaves_the_face_out(resources: Resources, training: dict[str, Any] | None) -> None:
    faces = enrol(resources, "c", range(8), shots=5)
    truncate(crop_path(resources, faces[3]))
    with writing(resources.database) as session:
        resources.models.keep(session, make_model("m1"))
        request = EvaluationRequest.model_validate(
            {"collection": "c", "protocol": "holdout"}
            | ({"model": "m1"} if training is None else {"training": training})
        )
        row = Evaluation(request=request.model_dump(mode="json"))
        session.add(row)
        session.flush()
        name = row.id
    job = run(resources, Evaluate(evaluation=name))
    assert job.state == "succeeded", job.problem
    assert job.result is not None
    assert job.result["damaged_faces"]["face_ids"] == [faces[3].face_id]
    assert job.result["report"]["faces"] == 39


def test_all_damaged_crops_are_found_in_one_reading(resources: Resources) -> None:
    faces = enrol(resources, "c", range(100), shots=2)
    damaged = [0, 63, 64, 150, 199]
    for i in damaged:
        truncate(crop_path(resources, faces[i]))
    with pytest.raises(CropsDamaged) as caught:
        describe_faces(JobContext("j", "w", resources), Recipe(), faces)
    assert [crop.face.pk for crop in caught.value.crops] == [faces[i].pk for i in damaged]  # type: ignore[attr-defined]


def test_a_job_fails_if_too_many_crops_are_damaged_and_then_marks_none(resources: Resources) -> None:
    faces = enrol(resources, "c", range(8), shots=3)
    for face in faces[:11]:
        truncate(crop_path(resources, face))
    job = train(resources)
    assert job.state == "failed"
    assert job.problem is not None
    assert job.problem["code"] == "TooManyDamaged"
    assert "11 of 24 faces" in job.problem["detail"]
    assert list_marked(resources) == []
    assert crop_path(resources, faces[0]).exists()


def test_a_damaged_crop_is_set_aside_and_goes_with_its_face(resources: Resources) -> None:
    faces = enrol(resources, "c", range(8), shots=3)
    path = crop_path(resources, faces[4])
    truncate(path)
    train(resources)
    assert not path.exists()
    aside = path.with_name(f"{path.name}.damaged")
    assert aside.exists()
    names = resources.blobs.files_of("c", faces[4].image_id)
    assert str(aside.relative_to(resources.blobs.root / "c-c")) in names
    with writing(resources.database) as session:
        session.delete(session.get_one(Face, faces[4].pk))
    assert list_marked(resources) == []


def test_a_damaged_crop_in_a_segment_is_set_aside_and_used_again_once_it_is_repaired(resources: Resources) -> None:
    faces = gallery.enrol(resources, "c", range(8), shots=3)
    name = Blobs.crop(faces[4].image_id, 0, "grey")
    content = resources.blobs.get("c", name)
    [segment] = (resources.blobs.root / "c-c" / "segments").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[data.index(content) + len(content) // 2] ^= 4
    segment.write_bytes(data)
    result = train(resources).result
    assert result is not None
    assert result["damaged_faces"]["face_ids"] == [faces[4].face_id]
    assert f"{name}.damaged" in resources.blobs.files_of("c", faces[4].image_id)
    resources.blobs.put("c", [(name, content)])
    assert run(resources, Sweep()).state == "succeeded"
    assert list_marked(resources) == []
    assert "damaged_faces" not in (train(resources).result or {})


def test_a_face_that_a_job_reads_although_it_is_marked_ends_the_job(resources: Resources) -> None:
    faces = enrol(resources, "c", range(8), shots=3)
    truncate(crop_path(resources, faces[4]))
    train(resources)
    with pytest.raises(CropsDamaged) as damage:
        describe_faces(JobContext("j", "w", resources), Recipe(), faces)
    assert len(list_marked(resources)) == 1
    assert faces[4].image_id not in str(damage.value), "no erasure would find it in the problem of the job"
    assert "of collection c: " in str(damage.value)


def test_a_disk_error_over_a_crop_does_not_name_its_file(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    [face] = enrol(resources, "c", [1], shots=1)

    def fail(_: Blobs, collection: str, name: str) -> bytes:
        raise OSError(errno.EIO, "Input/output error", f"/home/blobs/c-{collection}/{name}")

    monkeypatch.setattr(Blobs, "get", fail)
    with pytest.raises(CropsDamaged) as damage:
        describe_faces(JobContext("j", "w", resources), Recipe(), [face])
    assert face.image_id not in str(damage.value)
    assert str(damage.value).endswith(": Input/output error")


def test_an_intact_crop_reads_as_it_was_written(resources: Resources) -> None:
    [face] = enrol(resources, "c", [1], shots=1)
    assert crop_path(resources, face).read_bytes() == crops(1, 1000, 1.0)["grey"]
    rows = describe_faces(JobContext("j", "w", resources), Recipe(), [face])
    assert np.isfinite(rows).all()


def sweep(resources: Resources) -> int:
    result = run(resources, Sweep()).result
    assert result is not None
    return int(result["repaired"])


def test_a_restored_crop_is_used_again_after_the_next_sweep(resources: Resources) -> None:
    faces = enrol(resources, "c", range(4), shots=3)
    path = crop_path(resources, faces[5])
    whole = path.read_bytes()
    truncate(path)
    with writing(resources.database) as session:
        resources.models.keep(session, make_model("m1"))
    run(resources, Publish(collection="c", tasks=("identity",), model="m1", override=True, reason="a test"))
    assert sweep(resources) == 0
    path.write_bytes(whole[:-1])
    assert sweep(resources) == 0
    path.write_bytes(whole)
    with reading(resources.database) as session:
        before = session.get_one(Face, faces[5].pk).change
    assert sweep(resources) == 1
    assert list_marked(resources) == []
    with reading(resources.database) as session:
        assert count_rows(session, IndexKey("c", "identity", "m1", 0.0)) == (12, 12)
        assert session.get_one(Face, faces[5].pk).change == before + 2
    assert sweep(resources) == 0
