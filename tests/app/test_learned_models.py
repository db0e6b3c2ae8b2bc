"""Which models have learned from somebody: those of trainings that read the faces, whoever had them then."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.db.lookups import get_collection
from app.db.session import reading, writing
from app.db.tables import Collection, Deployment, Erasure, Face, Training, now
from app.galleries.deletion import delete_collection
from app.galleries.subjects import get_subject, name_faces
from app.learning.plan import Plan, Source
from app.learning.refit import list_models_that_read, make_refit
from app.resources import Resources
from app.snapshots.collection_restore import RestoreOptions, restore_collection
from app.snapshots.writer import write_snapshot
from app.storage.installation_key import InstallationKey
from app.subjects.schemas import SubjectIn
from app.subjects.service import change_subject, delete_subject, merge_subjects
from tests.rows import GalleryWriter, make_model, people

KEY = InstallationKey(bytes(32))
PLAN = Plan(
    collection="staff",
    method="wpca",
    options={},
    descriptors=(),
    sources=(Source(task="identity", origin="subjects"),),
    holdout=0.0,
)


@pytest.fixture
def database_url() -> str:
    """SQLite: what is listed does not depend on the database."""
    return ""


@pytest.fixture
def trained(resources: Resources) -> Resources:
    """A collection of six people, from which the model `full` has learned, and `partial` from all but p001."""
    gallery = GalleryWriter(resources).make(make_model("first"))
    rows, names = people(6, 2)
    gallery.add({"first": rows}, names)
    with reading(resources.database) as session:
        collection = session.get_one(Collection, "staff")
        snapshot = {
            "changes": {"staff": collection.change},
            "collections_created_at": {"staff": collection.created_at},
            "read_at": now(),
            "labels": {},
        }
    keep_training(resources, "full", snapshot)
    refit(resources, "partial", "p001")
    gallery.point(previous="full", challenger="partial")
    return resources


def keep_training(resources: Resources, model: str, snapshot: dict[str, Any], start_from: str | None = None) -> None:
    request = PLAN.model_copy(update={"start_from": start_from}).model_dump(mode="json", by_alias=True)
    with writing(resources.database) as session:
        training = Training(request=request, snapshot=snapshot, model=model)
        session.add(training)
        session.flush()
        resources.models.keep(session, make_model(model), training_id=training.id)


def refit(resources: Resources, model: str, subject: str) -> None:
    """Request a refit of `full` without a subject, and keep the model that it makes."""
    with writing(resources.database) as session:
        training = make_refit(session, KEY, "full", None, [subject])
        training.model = model
        resources.models.keep(session, make_model(model), training_id=training.id)


def delete(resources: Resources, subject: str, collection: str = "staff") -> tuple[list[str], list[str]]:
    """Delete a subject, and return the models that the answer lists, and those of the receipt."""
    with writing(resources.database) as session:
        answer = delete_subject(session, collection, subject)
        erasure = session.get_one(Erasure, answer.erasure.rpartition("/")[2])
        return answer.models, list_models_that_read(session, KEY, erasure)


def give(resources: Resources, subject: str, receiver: str) -> None:
    """Give the faces of a subject to another one."""
    with writing(resources.database) as session:
        collection = get_collection(session, "staff", lock=True)
        collection.change += 1
        giver = get_subject(session, "staff", subject)
        name_faces(session, collection, get_subject(session, "staff", receiver), Face.subject_pk == giver.pk)


def restore(resources: Resources, folder: Path, name: str, *, is_deleted: bool) -> None:
    """Restore `staff` under this name from a snapshot, beside it or after its deletion."""
    home = resources.settings.home
    write_snapshot(resources.database, home, folder, "staff", lambda *_: None)
    if is_deleted:
        with writing(resources.database) as session:
            delete_collection(session, get_collection(session, "staff", lock=True))
    options = RestoreOptions(new_face_ids=True)
    restore_collection(resources.database, home, folder, "staff", name, lambda *_: None, options)


def test_a_refit_has_not_learned_from_whom_it_left_out(trained: Resources) -> None:
    assert delete(trained, "p000") == (["full", "partial"], ["full", "partial"])
    assert delete(trained, "p001") == (["full"], ["full"])


def test_a_refit_has_learned_from_faces_that_were_merged_into_whom_it_left_out(trained: Resources) -> None:
    with writing(trained.database) as session:
        merge_subjects(session, "staff", "p000", "p001", needs_consent=False)
    assert delete(trained, "p001") == (["full", "partial"], ["full", "partial"])


def test_a_refit_has_learned_from_faces_that_were_given_to_whom_it_left_out(trained: Resources) -> None:
    give(trained, "p000", "p001")
    assert delete(trained, "p001") == (["full", "partial"], ["full", "partial"])


def test_a_refit_leaves_out_the_faces_that_somebody_has_when_it_is_requested(trained: Resources) -> None:
    with writing(trained.database) as session:
        merge_subjects(session, "staff", "p000", "p002", needs_consent=False)
        change_subject(session, "staff", "p002", SubjectIn(consent=False))
    refit(trained, "later", "p002")
    assert delete(trained, "p002") == (["full", "partial"], ["full", "partial"])
    refit(trained, "after the deletion", "p002")
    with reading(trained.database) as session:
        [erasure] = session.scalars(select(Erasure))
        assert list_models_that_read(session, KEY, erasure) == ["full", "partial"]


@pytest.mark.parametrize(("name", "is_deleted"), [("staff", True), ("copy", False), ("copy", True)])
def test_models_that_learned_from_a_collection_learned_from_its_copies(
    trained: Resources, tmp_path: Path, name: str, is_deleted: bool
) -> None:
    restore(trained, tmp_path / "snapshot", name, is_deleted=is_deleted)
    with reading(trained.database) as session:
        assert session.get_one(Deployment, (name, "identity")).previous == "full"
    assert delete(trained, "p002", name) == (["full", "partial"], ["full", "partial"])
    GalleryWriter(trained, name).add({}, ["new"])
    assert delete(trained, "new", name) == ([], [])


def test_models_of_a_later_collection_of_the_same_name_have_read_nothing_of_an_earlier_one(trained: Resources) -> None:
    with writing(trained.database) as session:
        erasure_id = delete_collection(session, get_collection(session, "staff", lock=True)).id
    with writing(trained.database) as session:
        session.add(Collection(id="staff"))
    with reading(trained.database) as session:
        created_at = session.get_one(Collection, "staff").created_at
    snapshot = {"changes": {"staff": 1}, "collections_created_at": {"staff": created_at}, "read_at": now()}
    keep_training(trained, "unrelated", snapshot)
    with reading(trained.database) as session:
        erasure = session.get_one(Erasure, erasure_id)
        assert list_models_that_read(session, KEY, erasure) == ["full", "partial"]


def test_a_model_has_learned_from_whom_the_model_it_continues_has_learned(trained: Resources) -> None:
    elsewhere = {"changes": {"visitors": 3}, "collections_created_at": {"visitors": 1.0}, "read_at": now()}
    keep_training(trained, "continued", elsewhere, start_from="full")
    keep_training(trained, "continued again", elsewhere, start_from="continued")
    keep_training(trained, "other", elsewhere)
    models = ["continued", "continued again", "full"]
    assert delete(trained, "p001") == (models, models)
