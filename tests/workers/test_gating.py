"""The gate as publishing calls it, on synthetic faces."""

from dataclasses import replace
from typing import Any

import pytest

from app.db.session import writing
from app.db.tables import Collection, Deployment, Face, Label, Task
from app.errors import Conflict
from app.learning.plan import ComponentChoice, Plan, Source
from app.queue.jobs import enqueue
from app.queue.messages import ImportArchive, Publish
from app.resources import Resources
from app.storage.model_cache import LBP_MODEL
from app.storage.recognisers.external_models import make_external_model
from ml.descriptors.external import External
from tests.gallery import context, enrol
from tests.rows import make_model
from workers.publishing.gate import judge_publication
from workers.publishing.model_comparison import ModelMeasurement, measure_models

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def keep(resources: Resources, name: str, dim: int, tasks: tuple[str, ...] = ("identity",), **model_facts: Any) -> str:
    model = replace(make_model(name, dim=dim), provenance=model_facts)
    model.embedder.tasks = tasks
    with writing(resources.database) as session:
        resources.models.keep(session, model)
    return name


def judge(resources: Resources, model: str, champion: str | None = LBP_MODEL, **wish: Any) -> dict[str, Any]:
    task = wish.pop("task", "identity")
    message = Publish(collection="c", tasks=(task,), model=model, **wish)
    with writing(resources.database) as session:
        job = enqueue(session, message)
    return judge_publication(context(resources, job), message, {task: champion})


def refusal(resources: Resources, model: str, champion: str | None = LBP_MODEL, **wish: Any) -> Conflict:
    with pytest.raises(Conflict) as refused:
        judge(resources, model, champion, **wish)
    return refused.value


def test_a_small_collection_passes_the_gate_unless_an_import_runs(resources: Resources) -> None:
    enrol(resources, "c", range(4), shots=2)
    keep(resources, "m1", 8)
    assert "8 faces" in judge(resources, "m1")["measured"]["identity"]["unmeasured"]
    with writing(resources.database) as session:
        enqueue(session, ImportArchive(collection="other", path="people.tar"))
    assert judge(resources, "m1")["passed"]
    with writing(resources.database) as session:
        enqueue(session, ImportArchive(collection="c", path="people.tar"))
    refused = refusal(resources, "m1")
    assert refused.code == "NotMeasured"
    assert "an import is running" in refused.detail


def test_a_model_that_served_before_is_not_measured_again(resources: Resources) -> None:
    enrol(resources, "c", range(12), shots=2)
    keep(resources, "m1", 1)
    assert refusal(resources, "m1").code in ("GateRefused", "NotMeasured")
    with writing(resources.database) as session:
        here = session.get_one(Deployment, ("c", "identity"))
        here.previous, here.measurements = "m1", {"m1": {}}
    assert judge(resources, "m1")["measured"] == {"identity": {"unmeasured": "it served here before"}}


def test_a_challenger_is_not_measured_by_the_gate(resources: Resources) -> None:
    enrol(resources, "c", range(12), shots=2)
    assert judge(resources, keep(resources, "m1", 1), pointer="challenger")["measured"] == {}


def test_a_champion_that_cannot_be_loaded_stops_the_gate_unless_it_is_overridden(
    resources: Resources,
) -> None:
    enrol(resources, "c", range(12), shots=2)
    keep(resources, "m1", 8)
    (resources.models.folder / keep(resources, "broken", 8) / "embedder.json").write_text("{}")
    refused = refusal(resources, "m1", champion="broken")
    assert refused.code == "NotMeasured"
    assert "cannot be measured" in refused.detail
    verdict = judge(resources, "m1", champion="broken", override=True, reason="the champion is broken")
    assert not verdict["passed"]
    assert "altered" in verdict["measured"]["identity"]["unmeasured"]


def by_group(name: str) -> dict[str, Any]:
    """Return the provenance of a model that learned `age` elsewhere, from the metadata field `group`."""
    plan = Plan(
        collection="elsewhere", method="wpca", descriptors=(ComponentChoice(name="lbp"),), options={}, holdout=0.2,
        sources=(Source(task="age", origin="metadata.group"),),
    )  # fmt: skip
    return {"plan": plan.model_dump(mode="json", by_alias=True), "changes": {"elsewhere": 7}}


def test_another_task_is_measured_by_the_metadata_it_was_trained_on(resources: Resources) -> None:
    groups = {who: {"group": who % 15} for who in range(60)}
    enrol(resources, "c", range(60), shots=3, metadata=groups)
    with writing(resources.database) as session:
        session.merge(Task(name="age", enabled=True))
    good = keep(resources, "good", 64, ("age",), **by_group("good"))
    verdict = judge(resources, good, champion=None, task="age")
    measured = verdict["measured"]["age"]
    assert verdict["passed"]
    assert (measured["baseline"], measured["difference"]) == ({}, {})
    assert measured["candidate"]["1-call@1"]["low"] > measured["chance"] > 0
    assert "strangers_named" not in measured["candidate"]
    poor = keep(resources, "poor", 1, ("age",), **by_group("poor"))
    refused = refusal(resources, poor, champion=good, task="age")
    assert refused.code == "GateRefused"
    assert refused.extra["compared_with"] == {"age": good}


def test_a_task_that_has_only_labelled_pairs_is_measured_by_them(resources: Resources) -> None:
    faces = enrol(resources, "c", range(60), shots=2, strength=0.3)
    with writing(resources.database) as session:
        session.merge(Task(name="age", enabled=True))
    good, poor = (keep(resources, name, dim, ("age",)) for name, dim in (("good", 128), ("poor", 1)))
    assert "20 labelled pairs of each kind" in refusal(resources, poor, champion=good, task="age").detail
    with writing(resources.database) as session:
        for i in range(0, 120, 2):
            for other, same in ((i + 1, True), ((i + 2) % 120, False)):
                a, b = sorted((faces[i].pk, faces[other].pk))
                session.add(Label(task="age", face_a=a, face_b=b, same=same, by="ann"))
    refused = refusal(resources, poor, champion=good, task="age")
    assert refused.code == "GateRefused"
    assert set(refused.extra["measured"]["age"]["difference"]) == {"labelled_pairs"}
    assert refused.extra["measured"]["age"]["people"] == 60


def test_a_face_erased_during_the_measurement_is_left_out(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    faces = enrol(resources, "c", range(12), shots=2)
    keep(resources, "m1", 8)
    resources.blobs.remove("c", [n for n in resources.blobs.names("c") if faces[0].image_id in n])
    read, calls = measure_models.__globals__["read_measurable_faces"], []

    def erasing(*given: Any) -> Any:
        result = read(*given)
        if not calls:
            with writing(resources.database) as session:
                session.delete(session.get_one(Face, faces[0].pk))
        calls.append(given)
        return result

    monkeypatch.setitem(measure_models.__globals__, "read_measurable_faces", erasing)
    with writing(resources.database) as session:
        job = enqueue(session, Publish(collection="c", tasks=("identity",), model="m1"))
    result = measure_models(context(resources, job), "c", "identity", [LBP_MODEL, "m1"])
    assert len(calls) == 2
    assert result.evidence["faces"] == 23
    assert result.comparison is not None
    assert result.comparison.people == 11


def measure(resources: Resources, model: str, *, allow_seen: bool = False) -> ModelMeasurement:
    with writing(resources.database) as session:
        job = enqueue(session, Publish(collection="c", tasks=("identity",), model=model))
    return measure_models(context(resources, job), "c", "identity", [LBP_MODEL, model], allow_seen=allow_seen)


@pytest.mark.parametrize("again", [4, 12, 40])
def test_people_whose_photos_a_model_has_learned_from_in_other_files_do_not_judge_it(
    resources: Resources, again: int
) -> None:
    enrol(resources, "studio", range(40), shots=2)
    keep(resources, "m1", 16, changes={"studio": 1})
    enrol(resources, "c", range(again), shots=2, strength=1.01, file="again")
    enrol(resources, "c", range(40, 80 - again), shots=2)
    measured = measure(resources, "m1")
    seen = 4 if again == 4 else 40
    assert measured.evidence["seen_people"] == {LBP_MODEL: 0, "m1": seen}
    assert measured.evidence["unseen_people"] == 40 - seen
    assert measured.evidence["unseen_by_both"]
    if seen < 40:
        assert measured.comparison is not None
        assert measured.comparison.people == 40 - seen
        return
    assert measured.comparison is None
    refused = refusal(resources, "m1")
    assert (refused.code, "m1 has learned from 40 of them" in refused.detail) == ("NotMeasured", True)
    everybody = measure(resources, "m1", allow_seen=True)
    assert everybody.comparison is not None
    assert (everybody.comparison.people, everybody.evidence["unseen_by_both"]) == (40, False)


def test_imported_vectors_where_a_model_has_learned_from_photos_do_not_keep_the_gate_from_measuring_it(
    resources: Resources,
) -> None:
    enrol(resources, "studio", range(40), shots=2)
    external = make_external_model(External(recogniser="mine", size=8, metric="cosine"))
    with writing(resources.database) as session:
        resources.models.keep(session, external)
        session.get_one(Collection, "studio").external_model = external.id
    enrol(resources, "c", range(40, 80), shots=2)
    keep(resources, "m1", 16, changes={"studio": 1})
    measured = measure(resources, "m1")
    assert measured.evidence["seen_people"] == {LBP_MODEL: 0, "m1": 0}
    assert measured.comparison is not None


def test_other_people_may_judge_a_model(resources: Resources) -> None:
    enrol(resources, "studio", range(40), shots=2)
    keep(resources, "m1", 16, changes={"studio": 1})
    enrol(resources, "c", range(40, 80), shots=2)
    measured = measure(resources, "m1")
    assert measured.comparison is not None
    assert (measured.comparison.people, measured.evidence["seen_people"]["m1"]) == (40, 0)
