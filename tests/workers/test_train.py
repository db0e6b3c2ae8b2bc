"""Trainings as a worker runs them, on synthetic faces."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from app.db.session import reading, snapshot, writing
from app.db.tables import Collection, Deployment, Face, Job, Label, ModelRecord, Training
from app.errors import Conflict
from app.learning.plan import ComponentChoice, Plan, Source
from app.queue.jobs import cancel, enqueue
from app.queue.messages import Train
from app.resources import Resources
from app.serving.calibration.gallery_calibration import measure_gallery
from app.storage.blob_store import Blobs
from app.storage.model_cache import HOLDOUT_SUFFIX
from app.storage.recognisers.external_models import make_external_model
from app.storage.stored_faces import CropsDamaged
from ml.descriptors.external import External
from ml.embedders.base import Embedder
from ml.errors import CannotGoOn, TooFewPairs
from ml.evaluation.comparisons.models import ModelComparison
from ml.evaluation.records import EvaluationReport
from tests.full_disk import save_on_full_disk
from tests.gallery import context, enrol
from workers.context import Interrupted
from workers.handlers import train
from workers.training import split, training_data
from workers.worker import Worker

LDML = {"dim": 8, "steps": 60, "groups": 16, "others": 16, "min_pairs": 10}
STILL = LDML | {"steps": 1, "rate": 1e-9}
"""So that a training that continues from a model ends with nearly the same embedder."""
FAMILIES = {
    "ldml": LDML,
    "stml": {"dim": 8, "steps": 60, "batch": 16, "pairs": 200},
    "qconv": {"dim": 8, "steps": 40},
    "cosim_mass": {"inner": 20, "steps": 40},
}
OURS = (Source(origin="subjects"), Source(origin="labels"))


def begin(resources: Resources, **options: Any) -> tuple[Job, Train]:
    plan = Plan(**{
        "collection": "c", "method": "ldml",
        "descriptors": (ComponentChoice(name="lbp"),), "options": LDML, "sources": OURS,
        "holdout": 0.3,
    } | options)  # fmt: skip
    with writing(resources.database) as session:
        training = Training(request=plan.model_dump(mode="json", by_alias=True))
        session.add(training)
        session.flush()
        message = Train(training=training.id, collection="c")
        job = enqueue(session, message)
        job.state, job.worker = "running", "test"
        training.job_id = job.id
    return job, message


def of(resources: Resources, message: Train) -> Training:
    with reading(resources.database) as session:
        training = session.get_one(Training, message.training)
        session.expunge(training)
        return training


def test_a_training_ends_with_a_candidate_and_its_report(resources: Resources) -> None:
    enrol(resources, "c", range(24), shots=4)
    enrol(resources, "c", range(100, 106), shots=1, named=False, role="distractor")
    job, message = begin(resources)
    result = train.train_model(message, context(resources, job))
    training = of(resources, message)
    assert training.model == result["model"]
    report = result["report"]
    assert report == training.report
    assert report["refit"]
    assert 0 < report["held_out_people"] < 24
    assert report["distractors"] == 6
    candidate, current = (EvaluationReport.from_dict(report[which]) for which in ("candidate", "current"))
    assert (candidate.queries, candidate.gallery) == (current.queries, current.gallery)
    assert candidate.gallery == report["held_out_people"] * 4 + 6 - 1
    comparison = report["tasks"]["identity"]["comparison"]
    assert (comparison["collection"], comparison["champion"], comparison["faces"]) == ("c", "lbp-l2", 96)
    assert ModelComparison.from_dict(comparison["comparison"]).people == report["held_out_people"]
    assert report["current_model"] == "lbp-l2"
    assert report["tasks"]["identity"]["current_has_seen"] == 0
    assert {p["phase"] for p in training.curve} == {"fit", "refit"}
    made = resources.models.get(result["model"])
    assert made.embedder.notes["steps"] == resources.models.get(made.id + HOLDOUT_SUFFIX).embedder.notes["steps"]
    assert made.calibrations["identity"].slope > 0
    impostors = made.calibrations["identity"].impostors
    assert len(impostors.effective) == len(impostors.distances)
    assert min(impostors.effective) < impostors.n / 10  # few people are in all of its pairs
    listed = resources.models.get(made.id + HOLDOUT_SUFFIX).provenance["held_out_faces"]
    assert len(listed) == 4 * report["held_out_people"]


def test_in_a_small_collection_more_people_are_strangers_to_further_fits(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "MIN_STRANGERS_HELD_OUT", 20)
    monkeypatch.setattr(split, "MIN_STRANGERS", 10)
    enrol(resources, "c", range(24), shots=4)
    job, message = begin(resources)
    first = train.train_model(message, context(resources, job))
    assert {p["phase"] for p in of(resources, message).curve} == {"fit", "refit", "cross-fit"}
    [strangers] = resources.models.get(first["model"]).provenance["open_set"]["identity"]["strangers"]
    assert first["report"]["held_out_people"] < 20 <= strangers["people"]
    job, message = begin(resources, start_from=first["model"])
    second = train.train_model(message, context(resources, job))
    [strangers] = resources.models.get(second["model"]).provenance["open_set"]["identity"]["strangers"]
    assert strangers["people"] == second["report"]["held_out_people"], "the first has learned from all others"


def list_held_out_faces(resources: Resources, model: str) -> list[int]:
    faces: list[int] = resources.models.get(model + HOLDOUT_SUFFIX).provenance["held_out_faces"]
    return faces


def test_nobody_is_a_stranger_to_a_training_that_continues_from_a_model_of_everybody(resources: Resources) -> None:
    enrol(resources, "c", range(24), shots=4)
    job, message = begin(resources, holdout=0.0)
    first = train.train_model(message, context(resources, job))
    job, message = begin(resources, start_from=first["model"], options=STILL)
    second = train.train_model(message, context(resources, job))
    model, report = resources.models.get(second["model"]), second["report"]
    assert (model.provenance["open_set"], model.provenance["by_held_out"]) == ({}, [])
    assert (report["candidate"], report["held_out_people"]) == (None, 0)
    assert report["start_has_seen"] > 0
    assert "continues" in report["why_unmeasured"]


@pytest.mark.parametrize("holdout", [0.3, 0.8])
def test_a_training_that_continues_holds_out_only_people_who_were_held_out_before(
    resources: Resources, holdout: float
) -> None:
    enrol(resources, "c", range(24), shots=4)
    job, message = begin(resources)
    first = train.train_model(message, context(resources, job))
    job, message = begin(resources, start_from=first["model"], options=STILL, holdout=holdout)
    second = train.train_model(message, context(resources, job))
    assert list_held_out_faces(resources, second["model"]) == list_held_out_faces(resources, first["model"])
    provenance = resources.models.get(second["model"]).provenance
    [strangers] = provenance["open_set"]["identity"]["strangers"]
    people = first["report"]["held_out_people"]
    assert (strangers["people"], second["report"]["held_out_people"], provenance["by_held_out"]) == (
        people, people, ["identity"],
    )  # fmt: skip
    assert (second["report"]["start_has_seen"] > 0) == (holdout > 0.3)


def test_people_whom_the_start_model_knows_from_another_collection_are_not_held_out(resources: Resources) -> None:
    enrol(resources, "c", range(12), shots=3)
    job, message = begin(resources)
    first = train.train_model(message, context(resources, job))
    newcomers = {face.pk for face in enrol(resources, "d", range(200, 224), shots=3)}
    enrol(resources, "d", range(12), shots=3)
    job, message = begin(resources, collection="d", start_from=first["model"], options=STILL, holdout=0.5)
    second = train.train_model(message, context(resources, job))
    assert second["report"]["start_has_seen"] > 0
    assert newcomers.issuperset(list_held_out_faces(resources, second["model"]))
    share = resources.models.get(second["model"] + HOLDOUT_SUFFIX).provenance["holdout"]
    assert share < 0.5, "who is enrolled again after an erasure may be somebody whom the start model knew"


def test_people_whom_the_start_model_recognises_by_other_files_are_not_held_out(resources: Resources) -> None:
    enrol(resources, "c", range(12), shots=3)
    job, message = begin(resources)
    first = train.train_model(message, context(resources, job))
    enrol(resources, "d", range(12), shots=3, file="saved again")
    job, message = begin(resources, collection="d", start_from=first["model"], options=STILL, holdout=0.5)
    second = train.train_model(message, context(resources, job))
    assert second["report"]["start_has_seen"] > 0
    provenance = resources.models.get(second["model"]).provenance
    assert (provenance["open_set"], provenance["by_held_out"]) == ({}, [])


def test_imported_vectors_where_the_start_model_has_learned_from_photos_do_not_stop_a_training(
    resources: Resources,
) -> None:
    """The collection was deleted, and created again under the same name."""
    enrol(resources, "c", range(12), shots=3)
    job, message = begin(resources)
    first = train.train_model(message, context(resources, job))
    external = make_external_model(External(recogniser="mine", size=8, metric="cosine"))
    with writing(resources.database) as session:
        resources.models.keep(session, external)
        session.get_one(Collection, "c").external_model = external.id
    enrol(resources, "d", range(12), shots=3, file="saved again")
    job, message = begin(resources, collection="d", start_from=first["model"], options=STILL, holdout=0.5)
    second = train.train_model(message, context(resources, job))
    assert second["report"]["start_has_seen"] == 0


def test_strangers_are_searched_for_in_each_collection_alone(resources: Resources) -> None:
    enrol(resources, "c", range(24), shots=4)
    enrol(resources, "d", range(100, 112), shots=3)
    sources = (Source(origin="subjects"), Source(origin="subjects", collection="d"))
    job, message = begin(resources, method="wpca", options={"dim": 6}, sources=sources)
    model = resources.models.get(train.train_model(message, context(resources, job))["model"])
    [strangers] = model.provenance["open_set"]["identity"]["strangers"]
    [elsewhere] = model.provenance["open_set_elsewhere"]["d"]["strangers"]
    assert (strangers["gallery_faces"], elsewhere["gallery_faces"]) == (96, 36)


def test_a_model_that_continues_another_has_learned_from_its_collection_too(resources: Resources) -> None:
    enrol(resources, "c", range(12), shots=3)
    job, message = begin(resources)
    first = train.train_model(message, context(resources, job))
    enrol(resources, "d", range(100, 112), shots=3)
    job, message = begin(resources, collection="d", start_from=first["model"])
    model = resources.models.get(train.train_model(message, context(resources, job))["model"])
    assert model.provenance["changes"].keys() == {"d"}
    for name in ("c", "d"):
        measured = measure_gallery(resources, name, "identity", model)["open_set"]["calibration"]
        assert measured["optimistic"], "the distances between its people are too large to stand for strangers"
    measured = measure_gallery(resources, "c", "identity", model)["open_set"]["calibration"]
    assert not measured["strangers"], "those held out of the second training are strangers in the other collection"


def test_a_training_that_meets_a_full_disk_is_tried_again(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.worker.RETRY_SECONDS", 0.0)
    enrol(resources, "c", range(12))
    job, _ = begin(resources, options=LDML | {"steps": 5}, holdout=0.0)
    with writing(resources.database) as session:
        session.get_one(Job, job.id).state = "queued"
    worker, states = Worker(resources, job.queue), []
    for has_room in (False, True):
        with monkeypatch.context() as patched:
            if not has_room:
                patched.setattr(Embedder, "save", save_on_full_disk)
            assert worker.step()
        with reading(resources.database) as session:
            states.append(session.get_one(Job, job.id).state)
    assert states == ["queued", "succeeded"]


def test_a_training_that_runs_twice_ends_with_the_same_model(resources: Resources) -> None:
    enrol(resources, "c", range(12))
    job, message = begin(resources)
    first = train.train_model(message, context(resources, job))
    assert train.train_model(message, context(resources, job)) == first
    with writing(resources.database) as session:
        training = session.get_one(Training, message.training)
        training.model = None  # as if it had been killed before its last transaction
        session.delete(session.get_one(ModelRecord, first["model"]))
    enrol(resources, "c", range(50, 60))  # what arrived meanwhile is not learned from
    again = train.train_model(message, context(resources, job))
    assert again["model"] == first["model"]
    assert again["report"]["faces"] == first["report"]["faces"] == 48
    assert again["report"]["candidate"]["mean_average_precision"] == pytest.approx(
        first["report"]["candidate"]["mean_average_precision"]
    )
    with reading(resources.database) as session:
        assert session.scalar(select(func.count()).select_from(ModelRecord)) == 2  # it, and the first of all


def test_a_worker_that_has_lost_its_training_removes_no_files_of_the_next_one(resources: Resources) -> None:
    enrol(resources, "c", range(12))
    job, message = begin(resources)
    saved = [resources.models.folder / f"m-{message.training}{ending}" for ending in ("", HOLDOUT_SUFFIX)]
    for folder in saved:
        folder.mkdir()
    with writing(resources.database) as session:
        session.get_one(Job, job.id).worker = "another"
    with pytest.raises(Interrupted):
        train.train_model(message, context(resources, job))
    assert [folder.exists() for folder in saved] == [True, True]


def test_a_training_with_too_few_labels_states_how_many_are_missing(resources: Resources) -> None:
    faces = enrol(resources, "c", range(6), shots=1, named=False)
    with writing(resources.database) as session:
        for a, b, same in ((0, 1, True), (2, 3, True), (1, 4, False)):
            session.add(Label(task="identity", face_a=faces[a].pk, face_b=faces[b].pk, same=same, by="ana"))
    job, message = begin(resources, holdout=0.0)
    with pytest.raises(TooFewPairs) as refused:
        train.train_model(message, context(resources, job))
    assert refused.value.missing == 8


def test_a_training_can_learn_from_labels_without_names(resources: Resources) -> None:
    faces = enrol(resources, "c", range(20), shots=3, named=False)
    with writing(resources.database) as session:
        for who in range(20):
            a, b = faces[3 * who], faces[3 * who + 1]
            session.add(Label(task="identity", face_a=a.pk, face_b=b.pk, same=True, by="ana"))
            for step in (3, 6, 9):
                first, second = sorted((a.pk, faces[(3 * who + step) % 60].pk))
                session.add(Label(task="identity", face_a=first, face_b=second, same=False, by="ana"))
    job, message = begin(resources, holdout=0.3)
    report = train.train_model(message, context(resources, job))["report"]
    task_report = report["tasks"]["identity"]["labels"]
    assert task_report["unseen"]["pairs"] > 0
    assert task_report["unseen"]["pairs"] + task_report["learned"]["pairs"] == 80
    assert report["candidate"] is None


def test_a_model_trained_on_labels_is_measured_on_named_people(resources: Resources) -> None:
    faces = enrol(resources, "c", range(20), shots=3)
    with writing(resources.database) as session:
        for who in range(10):
            for a, b, same in ((0, 1, True), (0, 2, True), (0, 3, False)):
                pair = faces[3 * who + a].pk, faces[3 * who + b].pk
                session.add(Label(task="identity", face_a=pair[0], face_b=pair[1], same=same, by="ana"))
    labels = (Source(origin="labels"),)
    job, message = begin(resources, holdout=0.3, sources=labels, options=LDML | {"min_pairs": 4})
    report = train.train_model(message, context(resources, job))["report"]
    assert report["candidate"]["queries"] == report["current"]["queries"] == 3 * report["held_out_people"] > 6
    assert set(report["tasks"]["identity"]["difference"]) == {"mAP", "1-call@1", "1-call@10"}


def test_principal_components_need_neither_labels_nor_names(resources: Resources) -> None:
    enrol(resources, "c", range(10), shots=2, named=False)
    job, message = begin(resources, method="wpca", options={"dim": 6})
    result = train.train_model(message, context(resources, job))
    made = resources.models.get(result["model"])
    assert made.embedder.learned["projection"].shape == (6, 9860)
    assert not made.calibrations
    assert not result["report"]["refit"]


def test_a_second_training_is_compared_with_the_champions_holdout_model(resources: Resources) -> None:
    enrol(resources, "c", range(16))
    job, message = begin(resources)
    first = train.train_model(message, context(resources, job))
    with writing(resources.database) as session:
        session.get_one(Deployment, ("c", "identity")).champion = first["model"]
    job, message = begin(resources)
    second = train.train_model(message, context(resources, job))
    task_report = second["report"]["tasks"]["identity"]
    assert task_report["current_model"] == first["model"]
    assert task_report["current_has_seen"] == 0
    assert task_report["difference"]["mAP"]["value"] == pytest.approx(0, abs=0.01), (
        "learned from the same, it is as good"
    )


def test_a_cancelled_training_stops_soon(resources: Resources) -> None:
    enrol(resources, "c", range(12))
    job, message = begin(resources, options=LDML | {"steps": 3000})
    ended: list[float] = []

    def work() -> None:
        with pytest.raises(Interrupted):
            train.train_model(message, context(resources, job))
        ended.append(time.monotonic())

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    until = time.monotonic() + 60
    while worker.is_alive() and not of(resources, message).curve:
        assert time.monotonic() < until, "the training has no curve"
        time.sleep(0.05)
    with writing(resources.database) as session:
        cancel(session, session.get_one(Job, job.id))
    options = time.monotonic()
    worker.join(20)
    assert ended
    assert ended[0] - options < 2
    assert of(resources, message).model is None


def test_a_training_that_takes_too_long_fails_at_its_next_step(resources: Resources) -> None:
    enrol(resources, "c", range(12))
    job, message = begin(resources, options=LDML | {"steps": 1_000_000})
    limited = replace(context(resources, job), deadline=time.monotonic() + 1)
    with pytest.raises(Conflict, match="LIKENESS_MAX_TRAINING_SECONDS"):
        train.train_model(message, limited)
    assert limited.deadline < time.monotonic() < limited.deadline + 20
    assert of(resources, message).model is None


def test_metadata_defines_a_task_of_its_own(resources: Resources) -> None:
    ages = {who: {"age": 20 + who} for who in range(20)}
    enrol(resources, "c", range(20), shots=2, metadata=ages)
    sources = (Source(task="age", origin="metadata.age", tolerance=2),)
    job, message = begin(resources, sources=sources)
    report = train.train_model(message, context(resources, job))["report"]
    assert report["task"] == "age"
    assert report["candidate"]["task"] == "age"
    assert np.isfinite(report["candidate"]["mean_average_precision"]["value"])


def test_one_model_can_be_trained_on_several_tasks_and_collections(resources: Resources) -> None:
    enrol(resources, "c", range(16), shots=3)
    ages = {who: {"age": 20 + who % 10} for who in range(100, 140)}
    enrol(resources, "d", range(100, 140), shots=1, metadata=ages, named=False)
    sources = (
        Source(origin="subjects"),
        Source(task="age", collection="d", origin="metadata.age", tolerance=1, max_pairs=300),
    )
    options = {"dim": 4, "steps": 60, "batch": 16, "pairs": 300, "auxiliary_pairs": 300}
    job, message = begin(resources, method="cpmtml", options=options, sources=sources)
    result = train.train_model(message, context(resources, job))
    made = resources.models.get(result["model"])
    assert made.tasks == ("identity", "age")
    assert made.calibrations.keys() == {"identity", "age"}
    tasks = result["report"]["tasks"]
    assert tasks["identity"]["current"] is not None
    assert tasks["age"]["candidate"]["task"] == "age"
    assert tasks["age"]["current"] is None, "nothing serves it yet"
    parts = tasks["identity"]["projections"]["parts"]
    assert [parts[name]["numbers"] for name in ("common", "own", "both")] == [4, 4, 8]
    assert parts["both"]["mAP"]["value"] == tasks["identity"]["candidate"]["mean_average_precision"]["value"]
    assert 0 <= tasks["age"]["projections"]["angles"]["to_tasks"]["identity"]["smallest"] <= 90
    assert {p["phase"] for p in of(resources, message).curve} == {"fit", "refit"}


def test_a_face_erased_during_the_training_is_left_out(resources: Resources) -> None:
    faces = enrol(resources, "c", range(12), shots=3)
    job, message = begin(resources)
    with writing(resources.database) as session:
        training = session.get_one(Training, message.training)
        training_data.record_snapshot(session, training, Plan.model_validate(training.request))
    resources.blobs.remove("c", [Blobs.crop(faces[0].image_id, 0, "grey")])
    with pytest.raises(CropsDamaged):
        train.train_model(message, context(resources, job))
    with writing(resources.database) as session:
        session.delete(session.get_one(Face, faces[0].pk))
    assert train.train_model(message, context(resources, job))["report"]["faces"] == 35


@pytest.mark.parametrize(
    ("database_url", "method"),
    [("postgresql", "ldml"), *(("sqlite", method) for method in FAMILIES)],
    indirect=["database_url"],
)
def test_a_training_starts_from_a_model_and_from_its_holdout_model(resources: Resources, method: str) -> None:
    enrol(resources, "c", range(24), shots=4)
    options = FAMILIES[method]
    job, message = begin(resources, method=method, options=options)
    first = train.train_model(message, context(resources, job))
    still = options | {"steps": 1, "rate": 1e-9}
    job, message = begin(resources, method=method, options=still, start_from=first["model"])
    again = train.train_model(message, context(resources, job))
    assert again["model"] != first["model"]
    rows = np.random.default_rng(0).random((40, 9860), np.float32)
    for ending in ("", HOLDOUT_SUFFIX):
        before, after = (resources.models.get(r["model"] + ending) for r in (first, again))
        distances = [g.embedder.metric.distances(g.embed(rows), g.embed(rows)) for g in (before, after)]
        np.testing.assert_allclose(distances[1], distances[0], atol=4e-3)


@pytest.mark.parametrize(
    ("database_url", "method"),
    [("postgresql", "ldml"), *(("sqlite", method) for method in FAMILIES)],
    indirect=["database_url"],
)
def test_a_method_refuses_a_model_it_cannot_start_from(resources: Resources, method: str) -> None:
    enrol(resources, "c", range(12), shots=3)
    job, message = begin(resources, method=method, options=FAMILIES[method], start_from="lbp-l2")
    with pytest.raises(CannotGoOn, match="L2"):
        train.train_model(message, context(resources, job))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_measurement_reads_a_collection_that_is_changed_meanwhile(resources: Resources) -> None:
    """PostgreSQL locks no row in a transaction that does not see its last change."""
    enrol(resources, "c", range(2), shots=1)
    _, message = begin(resources)
    plan = Plan.model_validate(of(resources, message).request)
    with snapshot(resources.database) as session:
        before = session.scalars(select(Collection.change)).one()
        with writing(resources.database) as other:
            other.scalars(select(Collection)).one().change += 1
        recorded = training_data.record_snapshot(session, Training(snapshot={}), plan)
    assert recorded["changes"] == {"c": before}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_training_finds_its_vocabulary_after_the_home_was_moved(
    resources: Resources, tmp_path: Path, small_vocabularies: None
) -> None:
    """The plan of a refit, and the record of the vocabulary that all trainings share, have a path of another home."""
    enrol(resources, "c", range(12), shots=2)
    fields: dict[str, Any] = {"method": "wpca", "options": {"dim": 4, "seed": 0}, "holdout": 0.0}

    def run(options: dict[str, Any]) -> dict[str, Any]:
        fisher = ComponentChoice(name="fisher", options={"stride": 40} | options)
        job, message = begin(resources, descriptors=(fisher,), **fields)
        model = train.train_model(message, context(resources, job))["model"]
        with reading(resources.database) as session:
            return dict(session.get_one(ModelRecord, model).manifest["descriptors"][0]["options"])

    options = run({})
    record = resources.settings.home / "vocabularies" / "fisher.json"
    moved = json.loads(record.read_text())
    moved["options"]["vocabulary"] = str(tmp_path / "gone" / f"{options['pin']}.safetensors")
    record.write_text(json.dumps(moved))
    assert run({}) == run(moved["options"]) == options
