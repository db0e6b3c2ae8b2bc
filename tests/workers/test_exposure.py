"""The people of a collection that a model may have learned from."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from app.db.session import reading, writing
from app.db.tables import Collection, Face, Label, Removal, Training
from app.learning.plan import ComponentChoice, Plan, Source
from app.resources import Resources
from app.storage.model_cache import HOLDOUT_SUFFIX, LBP_MODEL
from ml.embedders.cosine import Cosine
from ml.model import Model, Recipe
from tests.gallery import enrol
from tests.rows import make_model
from workers.training import training_data
from workers.training.exposure import HELD_OUT_FACES, find_learned_faces, trace_exposure
from workers.training.split import choose_held_out_faces

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
PEOPLE, SHOTS = 20, 2


def plan(collection: str = "c", **more: Any) -> Plan:
    given = {
        "collection": collection, "method": "wpca", "descriptors": (ComponentChoice(name="lbp"),), "options": {},
        "sources": (Source(origin="subjects"), Source(origin="labels")), "holdout": 0.3,
    }  # fmt: skip
    return Plan(**given | more)


def read(resources: Resources, collection: str = "c") -> training_data.TrainingData:
    with reading(resources.database) as session:
        training_plan = plan(collection)
        return training_data.read_training_data(
            session, training_plan, training_data.record_snapshot(session, Training(snapshot={}), training_plan)
        )


def learn(
    resources: Resources, name: str, collection: str = "c", *, holdout: float = 0.3, listed: bool = True, **more: Any
) -> Model:
    """A model that was fitted on the collection as it is, and its holdout model."""
    data = read(resources, collection)
    training_plan = plan(collection, holdout=holdout, start_from=more.pop("start_from", None))
    model_facts = {**data.snapshot, "labels": {}, "plan": training_plan.model_dump(mode="json", by_alias=True)}
    model = replace(make_model(name), provenance=model_facts | more)
    held = choose_held_out_faces(data, holdout)
    if holdout:
        pks = [face.pk for face, out in zip(data.faces, held, strict=True) if out]
        left_out = {"holdout": holdout} | ({HELD_OUT_FACES: pks} if listed else {})
        resources.models.save(replace(make_model(name + HOLDOUT_SUFFIX), provenance=left_out))
    with writing(resources.database) as session:
        resources.models.keep(session, model)
    return model


def known(resources: Resources, model: str, collection: str = "c") -> tuple[str, set[str]]:
    """Return the model that is measured instead, and the people that it may have learned from."""
    data = read(resources, collection)
    with reading(resources.database) as session:
        exposure = trace_exposure(session, resources.models, model, [collection])
        seen = find_learned_faces(session, exposure, data)
    return exposure.measured_as.id, {face.subject_id or "" for face, s in zip(data.faces, seen, strict=True) if s}


def held_out(resources: Resources, share: float = 0.3) -> set[str]:
    data = read(resources)
    out = choose_held_out_faces(data, share)
    return {face.subject_id or "" for face, o in zip(data.faces, out, strict=True) if o}


EVERYBODY = {f"p{i}" for i in range(PEOPLE)}


def test_the_built_in_model_has_learned_from_nobody(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    assert known(resources, LBP_MODEL) == (LBP_MODEL, set())


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "recomputed"])
def test_a_model_of_this_collection_is_measured_without_its_people_held_out(resources: Resources, listed: bool) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1", listed=listed)
    kept_out = held_out(resources)
    assert 1 < len(kept_out) < PEOPLE
    assert known(resources, "m1") == ("m1-held-out", EVERYBODY - kept_out)


def test_a_model_without_holdout_has_seen_everybody_except_later_people(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1", holdout=0.0)
    enrol(resources, "c", range(50, 55), shots=SHOTS)
    assert known(resources, "m1") == ("m1", EVERYBODY)
    with writing(resources.database) as session:
        session.add(Removal(collection_id="c", face_pk=10**6, change=10**6))
    assert known(resources, "m1")[1] == EVERYBODY | {f"p{i}" for i in range(50, 55)}, "they may be the same again"


def test_after_an_erasure_only_newcomers_in_the_holdout_count_as_unseen(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1")
    before = held_out(resources)
    enrol(resources, "c", range(50, 70), shots=SHOTS)
    newcomers = {f"p{i}" for i in range(50, 70)}
    assert known(resources, "m1")[1] == EVERYBODY - before
    with writing(resources.database) as session:
        session.add(Removal(collection_id="c", face_pk=10**6, change=10**6))
    would_be = held_out(resources) & newcomers
    assert would_be
    assert known(resources, "m1")[1] == (EVERYBODY - before) | (newcomers - would_be)


def test_a_label_between_a_held_out_and_a_seen_person_makes_both_seen(resources: Resources) -> None:
    faces = enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1")
    seen = known(resources, "m1")[1]
    one, other = min(seen), min(EVERYBODY - seen)
    first = {f"p{i}": faces[SHOTS * i].pk for i in range(PEOPLE)}
    pair = sorted((first[one], first[other]))
    with writing(resources.database) as session:
        session.add(Label(task="identity", face_a=pair[0], face_b=pair[1], same=True, by="ann"))
    assert known(resources, "m1")[1] == seen | {other}


def test_a_model_of_another_collection_has_seen_only_people_whose_photo_is_in_both(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    enrol(resources, "d", range(15, 40), shots=1)
    learn(resources, "m1", "d")
    assert known(resources, "m1") == ("m1", {f"p{i}" for i in range(15, PEOPLE)})


def test_a_model_has_seen_everybody_of_a_copy_of_its_collection_but_those_enrolled_later(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    enrol(resources, "studio", range(100, 105), shots=SHOTS)
    learn(resources, "m1", "studio", holdout=0.0)
    assert known(resources, "m1") == ("m1", set())
    with writing(resources.database) as session:
        session.get_one(Collection, "c").copied_from = ["studio"]
    enrol(resources, "c", range(50, 55), shots=SHOTS)
    assert known(resources, "m1") == ("m1", EVERYBODY)


def test_people_seen_by_the_starting_model_count_as_seen(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    enrol(resources, "d", range(100, 110), shots=SHOTS)
    learn(resources, "m1")
    learn(resources, "m2", "d", start_from="m1")
    assert known(resources, "m2") == ("m2-held-out", EVERYBODY - held_out(resources))
    learn(resources, "m3", "d", start_from="m1", holdout=0.0)
    assert known(resources, "m3") == ("m3", EVERYBODY), "it went on from m1 itself, which knows everybody"


def test_a_method_without_a_fit_has_learned_from_nobody(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    with writing(resources.database) as session:
        model = Model("m1", Recipe(), "cosine", Cosine(), provenance={"changes": {"c": 10**6}})
        resources.models.keep(session, model)
    assert known(resources, "m1") == ("m1", set())


def test_people_of_a_recreated_collection_do_not_count_as_unseen(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1", holdout=0.0)
    with writing(resources.database) as session:
        session.get_one(Collection, "c").created_at += 10**6
        for face in session.scalars(select(Face)):
            face.created_at += 10**6
    assert known(resources, "m1")[1] == EVERYBODY


def test_a_collection_recreated_during_a_training_is_another_collection(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1", holdout=0.0)
    enrol(resources, "c", range(50, 55), shots=SHOTS)
    assert known(resources, "m1")[1] == EVERYBODY
    with writing(resources.database) as session:
        session.get_one(Collection, "c").created_at -= 1.0  # still before the model was kept
    assert known(resources, "m1")[1] == EVERYBODY | {f"p{i}" for i in range(50, 55)}


def test_a_training_reads_no_faces_of_a_later_collection_of_the_same_id(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    with writing(resources.database) as session:
        snapshot = training_data.record_snapshot(session, Training(snapshot={}), plan())
        assert len(training_data.read_training_data(session, plan(), snapshot).faces) == PEOPLE * SHOTS
        session.get_one(Collection, "c").created_at += 1.0
        assert training_data.read_training_data(session, plan(), snapshot).faces == []
