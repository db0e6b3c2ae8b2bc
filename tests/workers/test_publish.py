"""Publishing as a worker runs it, on synthetic faces."""

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fastapi import Response
from sqlalchemy import event, func, select, update

from app.db.session import reading, writing
from app.db.tables import Collection, Deployment, Embedding, Face, Follower, Job, Task, now
from app.deployments.service import roll_back
from app.deps.caller import Caller
from app.deps.deployment_path import VersionedPath
from app.deps.job_response import JobOut
from app.enrolment.photo_analysis import EnrolmentRequest, analyse_photo
from app.enrolment.preparation import prepare_photos
from app.enrolment.store import enrol_photos as take
from app.errors import Conflict, Stale
from app.publishing import pointers
from app.publishing.pointers import MoveReason
from app.queue.jobs import enqueue, read_message
from app.queue.messages import Publish, Sweep
from app.resources import Resources
from app.storage.model_cache import LBP_MODEL
from app.storage.recognisers.external_models import make_external_model
from ml.descriptors.external import External
from ml.evaluation.comparisons.models import compare_rankings
from ml.evaluation.protocols import Protocol
from ml.evaluation.report import rank_protocol
from ml.evaluation.retrieval import Ranked
from ml.images import encode_png
from ml.model import Model
from ml.synthetic_faces import draw, person
from tests.gallery import context, enrol
from tests.npy import draw_people
from tests.rows import GalleryWriter, make_model
from workers.context import Interrupted, Later
from workers.handlers import publish, sweep
from workers.publishing import reembedding

INSISTED = {"override": True, "reason": "a test of the way, not of the gate"}
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def keep(resources: Resources, model: Model, report: dict[str, Any] | None = None) -> Model:
    with writing(resources.database) as session:
        resources.models.keep(session, model, report=report or {})
    return model


def job(resources: Resources, model: str, **wish: Any) -> tuple[Publish, Job]:
    message = Publish(**{"collection": "c", "tasks": ("identity",), "model": model, "by": "ann"} | wish)
    with writing(resources.database) as session:
        return message, enqueue(session, message)


def run(resources: Resources, model: str, **wish: Any) -> dict[str, Any]:
    message, row = job(resources, model, **wish)
    return publish.publish_model(message, context(resources, row))


def deployment(resources: Resources, task: str = "identity") -> Deployment:
    with reading(resources.database) as session:
        row = session.get_one(Deployment, ("c", task))
        session.expunge(row)
        return row


def counted(resources: Resources, model: str, task: str = "identity") -> int:
    rows = select(func.count()).where(Embedding.model_id == model, Embedding.task == task)
    with reading(resources.database) as session:
        return session.scalar(rows) or 0


def change(resources: Resources) -> int:
    with reading(resources.database) as session:
        return session.get_one(Collection, "c").change


def ranked(spread: float) -> Ranked:
    """Rank 70 people with four faces each; a greater spread gives a worse ranking."""
    rng = np.random.default_rng(0)
    people = np.repeat(np.arange(70), 4)
    rows = (rng.standard_normal((70, 8))[people] + spread * rng.standard_normal((280, 8))).astype(np.float32)
    everybody = np.arange(280)
    return rank_protocol(rows, Protocol("held-out", people, np.empty(0, np.int64), everybody, everybody))


def trained(candidate: float, current: float, against: str = LBP_MODEL, faces: int = 12) -> dict[str, Any]:
    """A training's report, of a collection `c` of so many faces."""
    comparison = compare_rankings(ranked(current), ranked(candidate)).to_dict()
    reported = {"collection": "c", "champion": against, "faces": faces, "comparison": comparison}
    return {"tasks": {"identity": {"comparison": reported}}}


@pytest.mark.parametrize("times", [1, 2])
def test_every_face_is_embedded_once_and_the_pointers_move_once(resources: Resources, times: int) -> None:
    enrol(resources, "c", range(3), shots=3)
    model, before = keep(resources, make_model("m1")), change(resources)
    message, row = job(resources, model.id)
    for _ in range(times):
        result = publish.publish_model(message, context(resources, row))
    too_few = {"unmeasured": "the collection has 9 faces, too few to measure anything or to serve anybody"}
    assert result == {
        "model": "m1", "tasks": ["identity"], "version": 2, "served": True,
        "verdict": {"passed": True, "reasons": [], "compared_with": {}, "measured": {"identity": too_few}},
    }  # fmt: skip
    assert counted(resources, "m1") == 9
    served = deployment(resources)
    assert (served.champion, served.previous, served.version) == ("m1", LBP_MODEL, 2)
    [entry] = served.history
    assert (entry["model"], entry["by"], entry["overridden"]) == ("m1", "ann", False)
    assert served.measurements["m1"]["faces"] == 9
    assert change(resources) == before + 1 == entry["change"]


def test_embeddings_of_an_earlier_run_are_kept(resources: Resources) -> None:
    faces = enrol(resources, "c", range(4), shots=3)
    model = keep(resources, make_model("m1"))
    marked = np.ones((5, 8), np.float32)
    with writing(resources.database) as session:
        reembedding.store_embeddings(session, "m1", {"identity": marked}, [f.pk for f in faces[:5]])
    run(resources, model.id, **INSISTED)
    with reading(resources.database) as session:
        rows = session.execute(select(Embedding.face_pk, Embedding.vector).where(Embedding.model_id == "m1"))
        stored = {row.face_pk: row.vector for row in rows}
    assert [stored[f.pk] for f in faces[:5]] == [row.tobytes() for row in marked]
    assert len(stored) == 12


@on_sqlite
def test_the_time_of_a_batch_does_not_grow_with_the_collection(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite sorts all faces each time when they are listed: once at first, and once for those that came meanwhile."""
    enrol(resources, "c", range(4), shots=2)
    model = keep(resources, make_model("m1"))
    _, row = job(resources, model.id)
    monkeypatch.setattr(reembedding, "FACES_PER_BATCH", 1)
    lists: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "ORDER BY faces.pk" in statement and "faces.pk IN" not in statement:
            lists.append(statement)

    event.listen(resources.database, "before_cursor_execute", note)
    reembedding.reembed_collection(context(resources, row), "c", model, ["identity"])
    event.remove(resources.database, "before_cursor_execute", note)
    assert counted(resources, "m1") == 8
    assert len(lists) == 2


def test_a_face_removed_during_the_run_gets_no_embedding(resources: Resources) -> None:
    faces = enrol(resources, "c", range(2), shots=1)
    keep(resources, make_model("m1"))
    with writing(resources.database) as session:
        session.delete(session.get_one(Face, faces[0].pk))
    with writing(resources.database) as session:
        reembedding.store_embeddings(session, "m1", {"identity": np.ones((2, 8), np.float32)}, [f.pk for f in faces])
    assert counted(resources, "m1") == 1


def test_faces_enrolled_during_the_run_are_embedded_too(resources: Resources) -> None:
    enrol(resources, "c", range(12), shots=4)
    model = keep(resources, make_model("m1"))
    stop = threading.Event()
    arrived: list[str] = []

    def arrive() -> None:
        for shot in range(100):
            if stop.is_set():
                return
            photo = analyse_photo(resources, encode_png(draw(person(50), shot)), EnrolmentRequest(aligned=True))
            outcomes = take(resources, "c", [photo], prepare_photos(resources, "c", [photo]))
            arrived.extend(face.face_id for face, _ in outcomes[0].faces)

    thread = threading.Thread(target=arrive)
    thread.start()
    run(resources, model.id, **INSISTED)
    stop.set()
    thread.join()
    assert arrived
    assert counted(resources, "m1") == 48 + len(arrived) == counted(resources, LBP_MODEL)


@on_sqlite
def test_the_gate_refuses_a_worse_candidate_with_reasons(resources: Resources) -> None:
    enrol(resources, "c", range(4), shots=3)
    keep(resources, make_model("m1"), trained(candidate=3.0, current=0.5))
    with pytest.raises(Conflict, match="m1") as refused:
        run(resources, "m1")
    assert refused.value.code == "GateRefused"
    assert any("mAP" in reason for reason in refused.value.extra["reasons"])
    assert refused.value.extra["measured"]["identity"]["by"] == "the report of its training"
    assert (deployment(resources).champion, counted(resources, "m1")) == (LBP_MODEL, 0)


@on_sqlite
def test_an_override_is_recorded_with_the_gates_verdict(resources: Resources) -> None:
    enrol(resources, "c", range(4), shots=3)
    keep(resources, make_model("m1"), trained(candidate=3.0, current=0.5))
    result = run(resources, "m1", override=True, reason="the held-out photos are old")
    assert not result["verdict"]["passed"]
    [entry] = deployment(resources).history
    assert entry["overridden"]
    assert entry["reason"] == "the held-out photos are old"
    assert entry["verdict"]["reasons"] == result["verdict"]["reasons"] != []
    assert entry["verdict"]["measured"]["identity"]["difference"]["mAP"]["high"] < 0


@on_sqlite
def test_a_report_is_valid_only_for_the_champion_and_gallery_it_was_measured_on(resources: Resources) -> None:
    enrol(resources, "c", range(4), shots=3)
    keep(resources, make_model("m1"), trained(candidate=0.5, current=3.0))
    keep(resources, make_model("m2"), trained(candidate=0.5, current=3.0))
    keep(resources, make_model("m3"), trained(candidate=0.5, current=3.0, against="m1", faces=20))
    verdict = run(resources, "m1")["verdict"]
    assert (verdict["passed"], verdict["compared_with"]) == (True, {"identity": LBP_MODEL})
    assert verdict["measured"]["identity"]["difference"]["mAP"]["low"] > 0
    for model in ("m2", "m3"):  # another champion by now; other faces by now
        with pytest.raises(Conflict) as refused:
            run(resources, model)
        assert refused.value.code == "NotMeasured"


@on_sqlite
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not recorded"])
def test_a_report_is_not_valid_for_a_later_collection_of_the_same_id(resources: Resources, recorded: bool) -> None:
    enrol(resources, "c", range(4), shots=3)
    report = trained(candidate=0.5, current=3.0)
    with reading(resources.database) as session:
        created_at = session.get_one(Collection, "c").created_at
    if recorded:
        report["tasks"]["identity"]["comparison"]["collection_created_at"] = created_at
    keep(resources, make_model("m1"), report)
    with writing(resources.database) as session:
        session.get_one(Collection, "c").created_at += 60.0
    with pytest.raises(Conflict) as refused:
        run(resources, "m1")
    assert refused.value.code == "NotMeasured"


def test_a_job_is_stale_if_its_deployment_changed_before_it_ran(resources: Resources) -> None:
    enrol(resources, "c", range(3), shots=2)
    for name in ("m1", "m2"):
        keep(resources, make_model(name))
    message, row = job(resources, "m2", version=1)
    run(resources, "m1")
    with pytest.raises(Stale):
        publish.publish_model(message, context(resources, row))
    assert deployment(resources).champion == "m1"


@on_sqlite
def test_an_archived_model_is_not_published(resources: Resources) -> None:
    enrol(resources, "c", range(3), shots=2)
    with writing(resources.database) as session:
        resources.models.keep(session, make_model("m1"), archived_at=now())
    with pytest.raises(Conflict, match="archived"):
        run(resources, "m1")


def test_a_publication_ends_when_all_processes_serve_it_and_moves_pointers_once(resources: Resources) -> None:
    enrol(resources, "c", range(3), shots=2)
    model = keep(resources, make_model("m1"))
    follower = {"process": "api-1", "collection_id": "c", "task": "identity", "vectors": 6}
    with writing(resources.database) as session:
        session.add(Follower(**follower, model_id=LBP_MODEL, change=1, seen_at=now() + 14))
        session.add(Follower(**follower | {"process": "dead"}, model_id=LBP_MODEL, change=1, seen_at=now() - 60))
    message, row = job(resources, model.id)
    with pytest.raises(Later):
        publish.publish_model(message, context(resources, row))
    with writing(resources.database) as session:
        session.merge(Follower(**follower, model_id="m1", change=change(resources), seen_at=now()))
    assert publish.publish_model(message, context(resources, row))["served"]
    assert deployment(resources).version == 2


@on_sqlite
def test_a_job_rolled_back_while_it_waits_does_not_move_the_pointers_again(resources: Resources) -> None:
    enrol(resources, "c", range(3), shots=2)
    model = keep(resources, make_model("m1"))
    message, row = job(resources, model.id)
    publish.publish_model(message, context(resources, row))
    with writing(resources.database) as session:
        pointers.roll_back(session, pointers.lock_collection(session, "c"), "identity", MoveReason("bob"))
    publish.publish_model(message, context(resources, row))
    assert deployment(resources).champion == LBP_MODEL


@on_sqlite
def test_an_interrupted_run_leaves_the_pointers_and_the_next_run_continues(resources: Resources) -> None:
    enrol(resources, "c", range(3), shots=2)
    model = keep(resources, make_model("m1"))
    message, row = job(resources, model.id)
    stopped = context(resources, row)
    stopped.interrupted.set()
    with pytest.raises(Interrupted):
        publish.publish_model(message, stopped)
    assert deployment(resources).champion == LBP_MODEL
    publish.publish_model(message, context(resources, row))
    assert deployment(resources).champion == "m1"


def two_tasks(resources: Resources, name: str) -> Model:
    model = make_model(name)
    model.embedder.tasks = ("identity", "age")
    with writing(resources.database) as session:
        session.merge(Task(name="age", enabled=True))
    return keep(resources, model)


def test_a_model_of_several_tasks_is_published_for_all_and_rolled_back_where_possible(
    resources: Resources,
) -> None:
    enrol(resources, "c", range(3), shots=2)
    for name in ("m1", "m2"):
        two_tasks(resources, name)
        run(resources, name, tasks=("identity", "age"))
    age = deployment(resources, "age")
    assert (age.champion, age.previous, counted(resources, "m2", "age")) == ("m2", "m1", 6)
    with writing(resources.database) as session:
        moved = pointers.roll_back(session, pointers.lock_collection(session, "c"), "identity", MoveReason("bob"))
        assert {d.task for d in moved} == {"identity", "age"}
    assert deployment(resources, "age").champion == "m1"


def accept_rollback(resources: Resources) -> tuple[Publish, Job]:
    """Publish two models of two tasks, and have a job accepted that rolls both tasks back to the first, m1."""
    enrol(resources, "c", range(3), shots=2)
    for name in ("m1", "m2"):
        two_tasks(resources, name)
        run(resources, name, tasks=("identity", "age"))
    keep(resources, make_model("m3"))
    with writing(resources.database) as session:
        session.delete(session.scalars(select(Embedding).where(Embedding.model_id == "m1")).first())
    with writing(resources.database) as session:
        path = VersionedPath("c", "identity")
        accepted = roll_back(session, resources.models, path, None, Caller("k", "admin", "ann"), Response())
        assert isinstance(accepted, JobOut)
        row = session.get_one(Job, accepted.id)
        session.expunge(row)
    message = read_message(row)
    assert isinstance(message, Publish)
    return message, row


@on_sqlite
def test_a_rollback_by_a_job_is_stale_if_any_of_its_tasks_was_published_meanwhile(resources: Resources) -> None:
    message, row = accept_rollback(resources)
    with writing(resources.database) as session:
        pointers.move_champion(session, pointers.lock_collection(session, "c"), "m3", {"age": {}}, MoveReason("bob"))
    with pytest.raises(Stale, match="'age' now has the champion m3 and the previous model m2"):
        publish.publish_model(message, context(resources, row))
    assert [deployment(resources, task).champion for task in ("identity", "age")] == ["m2", "m3"]


@on_sqlite
def test_a_rollback_by_a_job_goes_on_if_only_a_challenger_was_set_meanwhile(resources: Resources) -> None:
    message, row = accept_rollback(resources)
    with writing(resources.database) as session:
        pointers.set_challenger(session, pointers.lock_collection(session, "c"), "age", "m3", MoveReason("bob"))
    publish.publish_model(message, context(resources, row))
    assert [deployment(resources, task).champion for task in ("identity", "age")] == ["m1", "m1"]


@on_sqlite
def test_a_challenger_is_embedded_and_does_not_replace_the_champion(resources: Resources) -> None:
    enrol(resources, "c", range(3), shots=2)
    keep(resources, make_model("m1"), trained(candidate=3.0, current=0.5))
    run(resources, "m1", pointer="challenger")
    here = deployment(resources)
    assert (here.champion, here.challenger, here.previous) == (LBP_MODEL, "m1", None)
    assert counted(resources, "m1") == 6


@on_sqlite
def test_measurements_are_kept_only_for_deployed_models(resources: Resources) -> None:
    enrol(resources, "c", range(3), shots=2)
    for name in ("m1", "m2", "m3"):
        keep(resources, replace(make_model(name), provenance={"made": name}))
        run(resources, name)
    assert set(deployment(resources).measurements) == {"m2", "m3"}


@on_sqlite
def test_a_model_can_be_published_in_an_empty_collection(resources: Resources) -> None:
    with writing(resources.database) as session:
        session.add_all([Collection(id="c"), Deployment(collection_id="c", task="identity", champion=LBP_MODEL)])
    keep(resources, make_model("m1"))
    assert run(resources, "m1")["served"]


def test_faces_that_a_model_has_learned_from_elsewhere_are_embedded_while_it_serves_here(resources: Resources) -> None:
    """People who are enrolled here later are compared with them: the model is no judge of strangers among these."""
    enrol(resources, "studio", range(3), shots=3)
    enrol(resources, "c", range(10, 13), shots=2)
    learned = {"training": "t", "collection": "studio", "changes": {"studio": 9, "gone": 1, "c": 1}}
    keep(resources, replace(make_model("m1"), provenance=learned))
    run(resources, "m1", **INSISTED)
    assert counted(resources, "m1") == 6 + 9
    assert sweep_embeddings(resources) == 0
    for name in ("m2", "m3"):
        keep(resources, make_model(name))
        run(resources, name, **INSISTED)
    assert sweep_embeddings(resources) == 15
    assert counted(resources, "m1") == 0


@on_sqlite
@pytest.mark.parametrize("learned_at", [{}, {"studio": 1.0}], ids=["not recorded", "recorded"])
def test_imported_vectors_where_a_model_has_learned_from_photos_do_not_keep_it_from_being_published(
    resources: Resources, learned_at: dict[str, float]
) -> None:
    enrol(resources, "c", range(10, 13), shots=2)
    external = make_external_model(External(recogniser="mine", size=8, metric="cosine"))
    vectors, people = draw_people(3, 3, 8)
    studio = GalleryWriter(resources, "studio").make(external)
    studio.add({external.id: vectors}, people)
    with writing(resources.database) as session:
        session.get_one(Collection, "studio").external_model = external.id
    learned = {"training": "t", "collection": "studio", "changes": {"studio": 9}, "collections_created_at": learned_at}
    keep(resources, replace(make_model("m1"), provenance=learned))
    assert run(resources, "m1", **INSISTED)["served"]
    assert counted(resources, "m1") == 6


@on_sqlite
def test_people_of_a_later_collection_are_not_embedded_by_the_model_of_an_earlier_one(resources: Resources) -> None:
    """Those who were restored into it are: they were enrolled before the model was made."""
    enrol(resources, "studio", range(3), shots=3)
    enrol(resources, "c", range(10, 13), shots=2)
    learned = {
        "training": "t",
        "collection": "studio",
        "changes": {"studio": 9},
        "collections_created_at": {"studio": 1.0},
    }
    keep(resources, replace(make_model("m1"), provenance=learned))
    enrol(resources, "studio", range(20, 24), shots=3)
    run(resources, "m1", **INSISTED)
    assert counted(resources, "m1") == 6 + 9


def sweep_embeddings(resources: Resources) -> int:
    """End all jobs, which may be about to publish a model, sweep, and return how many embeddings of `m1` are gone."""
    before = counted(resources, "m1")
    with writing(resources.database) as session:
        session.execute(update(Job).values(state="succeeded"))
        row = enqueue(session, Sweep())
    sweep.sweep_all(Sweep(), context(resources, row))
    return before - counted(resources, "m1")
