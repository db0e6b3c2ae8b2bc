"""A model refitted without some people is bit for bit the model that never saw them. REFIT_TRIALS: how many to try."""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.config import Settings
from app.db.session import reading, writing
from app.db.tables import Collection, Erasure, Face, Label, ModelRecord, Subject, Training
from app.errors import Conflict, Invalid
from app.galleries.erasure_receipts import hash_subject
from app.galleries.subjects import erase_faces
from app.learning.plan import ComponentChoice, Plan
from app.learning.refit import REFIT_OF, ReadFaces, list_models_that_learned, list_models_that_read, make_refit
from app.queue.jobs import enqueue
from app.queue.messages import Train
from app.resources import Resources, open_resources
from app.storage.installation_key import InstallationKey
from app.storage.model_cache import HOLDOUT_SUFFIX, ensure_lbp_model
from app.subjects.schemas import SubjectIn
from app.subjects.service import change_subject, merge_subjects
from ml.files import hash_file
from tests.databases import migrate
from tests.gallery import context, enrol
from tests.ml.tiny_onnx import tiny_onnx
from tests.workers.test_train import LDML, begin
from workers.handlers.train import train_model
from workers.training.training_data import read_training_data

PEOPLE = range(16)
KEY = InstallationKey(bytes(32))
TRIALS = int(os.environ.get("REFIT_TRIALS", "3"))
CHOICES: tuple[dict[str, Any], ...] = (
    {"method": "ldml", "options": LDML},
    {"method": "wpca", "options": {"dim": 8}},
    {"method": "clml", "options": {"dim": 8, "steps": 40, "groups": 16, "others": 16, "min_pairs": 10}},
)


@pytest.fixture
def database_url() -> str:
    """SQLite: what is learned does not depend on the database."""
    return ""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Resources]:
    """A second service, which never sees the forgotten people."""
    settings = Settings(home=tmp_path / "elsewhere", default_recogniser="lbp")
    settings.home.mkdir()
    migrate(settings)
    with open_resources(settings) as opened:
        with writing(opened.database) as session:
            ensure_lbp_model(session, opened.models)
        yield opened


def fill(resources: Resources, people: Iterable[int]) -> None:
    """Enrol people, and label two faces of neighbours as different."""
    faces = {face.subject_pk: face for face in enrol(resources, "c", people, shots=3)}
    with writing(resources.database) as session:
        kept = sorted(faces)
        for first, second in itertools.pairwise(kept):
            a, b = sorted((faces[first].pk, faces[second].pk))
            session.add(Label(task="identity", face_a=a, face_b=b, same=False, by="ann"))


def train(resources: Resources, **options: Any) -> str:
    job, message = begin(resources, **options)
    return str(train_model(message, context(resources, job))["model"])


def refit(resources: Resources, model: str, subjects: list[str]) -> str:
    with writing(resources.database) as session:
        training = make_refit(session, KEY, model, None, subjects)
        message = Train(training=training.id, collection="c")
        job = enqueue(session, message)
        job.state, job.worker = "running", "test"
    return str(train_model(message, context(resources, job))["model"])


def erase(resources: Resources, subject: str) -> list[str]:
    """Erase a subject, and return the models that have learned from it."""
    with writing(resources.database) as session:
        row = session.scalars(select(Subject).where(Subject.id == subject)).one()
        collection = session.get_one(Collection, "c")
        models = list_models_that_learned(session, collection, row)
        erase_faces(session, collection, Face.subject_pk == row.pk)
        session.delete(row)
    return models


def fingerprint(resources: Resources, model: str) -> dict[str, str]:
    """The hashes of what the model and its holdout model have learned, and of their calibration."""
    folder, loaded = resources.models.folder, resources.models.get(model)
    names = [f"{model}{suffix}" for suffix in ("", HOLDOUT_SUFFIX)]
    hashes = {f"{name.removeprefix(model)}": hash_file(folder / name / "embedder.safetensors") for name in names}
    return hashes | {task: str(c.to_dict()) for task, c in loaded.calibrations.items()}


@pytest.mark.parametrize("trial", range(TRIALS))
def test_a_refit_without_somebody_is_the_model_that_never_saw_them(
    resources: Resources, elsewhere: Resources, trial: int
) -> None:
    forgotten = (5 + 3 * trial) % len(PEOPLE)
    options = CHOICES[trial % len(CHOICES)]
    options = options | {"options": options["options"] | {"seed": trial // len(CHOICES)}}
    fill(resources, PEOPLE)
    model = train(resources, **options)
    if trial % 2:
        assert erase(resources, f"p{forgotten}") == [model]
    without = refit(resources, model, [f"p{forgotten}"])
    enrol_without_neighbour_labels(elsewhere, forgotten)
    never = train(elsewhere, **options)
    assert fingerprint(resources, without) == fingerprint(elsewhere, never)
    assert fingerprint(resources, without) != fingerprint(resources, model)


def enrol_without_neighbour_labels(resources: Resources, forgotten: int) -> None:
    """Enrol everybody but one, with the labels that do not concern that one."""
    fill(resources, range(forgotten))
    fill(resources, range(forgotten + 1, len(PEOPLE)))


def test_people_who_were_changed_since_a_training_have_been_learned(resources: Resources) -> None:
    """A change of a subject gives its faces a later change number than the training has read."""
    fill(resources, PEOPLE)
    model = train(resources, **CHOICES[1])
    with writing(resources.database) as session:
        for who in PEOPLE:
            change_subject(session, "c", f"p{who}", SubjectIn(external_id=f"x{who}"))
    without = refit(resources, model, ["p3"])
    assert fingerprint(resources, without) != fingerprint(resources, refit(resources, model, ["p4"]))
    with reading(resources.database) as session:
        counts = [session.get_one(ModelRecord, name).report["faces"] for name in (model, without)]
    assert counts == [3 * len(PEOPLE), 3 * len(PEOPLE) - 3]
    assert erase(resources, "p5") == sorted([model, *list_refits(resources)])
    with writing(resources.database) as session:
        [erasure] = session.scalars(select(Erasure))
        assert list_models_that_read(session, KEY, erasure) == sorted([model, *list_refits(resources)])


def merge(resources: Resources, name: str, into: str, *, is_recorded: bool = True) -> None:
    """Merge a subject into another. is_recorded: whether the keys of merged people are, as earlier versions did not"""
    with writing(resources.database) as session:
        merge_subjects(session, "c", name, into, needs_consent=False)
        kept = session.scalars(select(Subject).where(Subject.id == into)).one()
        if not is_recorded:
            kept.merged_subjects = [{k: v for k, v in one.items() if k != "pk"} for one in kept.merged_subjects]


def read_people(resources: Resources, training: str) -> set[str | None]:
    with reading(resources.database) as session:
        row = session.get_one(Training, training)
        return {face.subject_id for face in read_training_data(session, Plan(**row.request), row.snapshot).faces}


def store_trained(resources: Resources) -> None:
    """Store a training that has read all faces, and its model."""
    with writing(resources.database) as session:
        collection = session.get_one(Collection, "c")
        read = {
            "changes": {"c": collection.change}, "collections_created_at": {"c": collection.created_at}, "labels": {},
        }  # fmt: skip
        request = {
            "collection": "c", "method": "wpca", "descriptors": [{"name": "lbp"}], "options": {}, "holdout": 0.3,
            "sources": [{"origin": "subjects"}],
        }  # fmt: skip
        training = Training(request=request, snapshot=read, model="trained")
        session.add(training)
        session.flush()
        session.add(ModelRecord(id="trained", manifest={}, report={}, training_id=training.id))


def begin_refit(resources: Resources, model: str, *subjects: str) -> str:
    """Request a refit, and name its model "refit". Returns the id of its training."""
    with writing(resources.database) as session:
        training = make_refit(session, KEY, model, None, subjects)
        training.model = "refit"
        session.add(ModelRecord(id="refit", manifest={}, report={}, training_id=training.id))
        return training.id


def test_whoever_is_merged_with_somebody_who_is_left_out_is_left_out_too(resources: Resources) -> None:
    """A refit waits in the queue: until it reads the faces, they may become those of another."""
    fill(resources, range(4))
    store_trained(resources)
    refitted = begin_refit(resources, "trained", "p1")
    assert read_people(resources, refitted) == {"p0", "p2", "p3"}
    merge(resources, "p1", "p2")
    assert read_people(resources, refitted) == {"p0", "p3"}
    merge(resources, "p2", "p3")
    assert read_people(resources, refitted) == {"p0"}


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_refit_leaves_out_whom_somebody_was_merged_into_before(resources: Resources, is_recorded: bool) -> None:
    fill(resources, range(4))
    store_trained(resources)
    begin_refit(resources, "trained", "p1")
    merge(resources, "p1", "p2", is_recorded=is_recorded)
    with writing(resources.database) as session:
        of_refit = make_refit(session, KEY, "refit", None, ["p0"]).id
        of_merged = make_refit(session, KEY, "trained", None, ["p1"]).id
    assert [read_people(resources, training) for training in (of_refit, of_merged)] == [{"p3"}, {"p0", "p3"}]


def test_a_restored_person_is_not_left_out_for_the_number_that_another_has_now(resources: Resources) -> None:
    """Somebody was merged into p2 in the original, by a number that is p1's here."""
    fill(resources, range(4))
    store_trained(resources)
    with writing(resources.database) as session:
        pks = {row.id: row.pk for row in session.execute(select(Subject.id, Subject.pk))}
        before = session.get_one(Collection, "c").created_at - 1
        session.get_one(Subject, pks["p2"]).merged_subjects = [
            {"pk": pks["p1"], "id": "old", "external_id": None, "created_at": before, "merged_at": before}
        ]
    assert read_people(resources, begin_refit(resources, "trained", "p1")) == {"p0", "p2", "p3"}


def list_refits(resources: Resources) -> list[str]:
    with reading(resources.database) as session:
        trainings = session.execute(select(Training.model, Training.snapshot)).all()
    return [name for name, snapshot in trainings if name and REFIT_OF in snapshot]


def test_a_model_knows_whom_it_never_saw(resources: Resources) -> None:
    fill(resources, PEOPLE)
    model = train(resources, **CHOICES[1])
    once = refit(resources, model, ["p3"])
    twice = refit(resources, once, ["p4"])
    provenance = resources.models.get(twice).provenance
    assert provenance["without"] == {"c": sorted(hash_subject(KEY, "c", subject) for subject in ("p3", "p4"))}
    assert provenance["refit_of"] == once
    assert erase(resources, "p3") == [model], "the refits have not read these faces"


def test_what_cannot_be_forgotten_exactly_is_refused(resources: Resources) -> None:
    fill(resources, PEOPLE)
    model = train(resources, **CHOICES[1])
    with writing(resources.database) as session:
        with pytest.raises(Conflict, match="no training of model"):
            make_refit(session, KEY, "lbp-l2", None, ["p3"])
        with pytest.raises(Invalid, match="has not learned from"):
            make_refit(session, KEY, model, "d", ["p3"])
        training = session.scalars(select(Training).where(Training.model == model)).one()
        request = training.request
        training.request = request | {"start_from": "m-other"}
        with pytest.raises(Conflict, match="continues m-other"):
            make_refit(session, KEY, model, None, ["p3"])
        fisher = ComponentChoice(name="fisher").model_dump()
        training.request = request | {"descriptors": [fisher]}
        with pytest.raises(Conflict, match="vocabulary of fisher"):
            make_refit(session, KEY, model, None, ["p3"])


def test_a_model_that_describes_by_a_file_of_the_operator_can_be_refitted(resources: Resources, tmp_path: Path) -> None:
    fill(resources, PEOPLE)
    onnx = ComponentChoice(name="onnx", options={"manifest": str(tiny_onnx(tmp_path))})
    model = train(resources, method="wpca", options={"dim": 3}, descriptors=(onnx,))
    assert resources.models.get(refit(resources, model, ["p3"])).provenance["refit_of"] == model


def test_the_models_that_learned_are_those_of_trainings_and_of_first_faces_but_no_refit_without_them(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, is_in = set[str](), ReadFaces.is_in

    def note_parts(faces: ReadFaces, snapshot: Mapping[str, Any], made_at: float) -> bool:
        parts.update(snapshot)
        return is_in(faces, snapshot, made_at)

    monkeypatch.setattr(ReadFaces, "is_in", note_parts)
    read = {"changes": {"c": 5}, "collections_created_at": {"c": 1.0}, "labels": {"identity": [1, 2]}}
    left_out = {**read, "without": {"c": [hash_subject(KEY, "c", "p3")]}, "without_pks": {"c": []}}
    targets = {"subject": "p3", "subject_pk": 3, "last_change": 2}
    erasure = Erasure(
        collection_id="c", collection_created_at=1.0, target="subject", first_change=2, change=6, targets=targets
    )
    with writing(resources.database) as session:
        session.add_all(
            Training(request={}, snapshot=snapshot, model=model)
            for model, snapshot in (("learned", read), ("refit", left_out), ("later", {**read, "changes": {"c": 6}}))
        )
        session.add(ModelRecord(id="first", manifest={"facts": {"changes": {"c": 5}, "made": "trained"}}, report={}))
        session.add(ModelRecord(id="other", manifest={"facts": {"made": "imported"}}, report={}))
        session.flush()
        assert list_models_that_read(session, KEY, erasure) == ["first", "learned"]
    assert parts == {"changes", "collections_created_at", "without", "without_pks", "made"}, "labels are not read"
