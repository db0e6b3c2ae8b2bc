"""Which people of a collection a model has learned from."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from app.db.session import reading, writing
from app.db.tables import Collection, Face, Label, Removal, Training
from app.learning.plan import Named, Plan, Source
from app.resources import Resources
from app.storage.model_cache import FIRST
from ml.embedders.cosine import Cosine
from ml.model import Model, Recipe, save_model
from tests.gallery import enrol
from tests.rows import generation
from workers.publishing.exposure import HELD_OUT_FACES, HOLDOUT_SUFFIX, exposure, learned_from
from workers.training import embedder_fit, training_data

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
PEOPLE, SHOTS = 20, 2


def plan(collection: str = "c", **more: Any) -> Plan:
    given = {
        "collection": collection, "method": "wpca", "descriptors": (Named(name="lbp"),), "options": {},
        "sources": (Source(origin="subjects"), Source(origin="labels")), "holdout": 0.3,
    }  # fmt: skip
    return Plan(**given | more)


def read(resources: Resources, collection: str = "c") -> training_data.Snapshot:
    with reading(resources.database) as session:
        asked = plan(collection)
        return training_data.read(session, asked, training_data.taken(session, Training(snapshot={}), asked))


def learn(
    resources: Resources, name: str, collection: str = "c", *, holdout: float = 0.3, listed: bool = True, **facts: Any
) -> Model:
    """A model that was fitted on the collection as it is, and its holdout model."""
    taken = read(resources, collection)
    asked = plan(collection, holdout=holdout, start_from=facts.pop("start_from", None))
    told = {**taken.taken, "labels": {}, "plan": asked.model_dump(mode="json", by_alias=True)}
    model = replace(generation(name), facts=told | facts)
    held = embedder_fit.held_out(taken, holdout)
    if holdout:
        pks = [face.pk for face, out in zip(taken.faces, held, strict=True) if out]
        left_out = {"holdout": holdout} | ({HELD_OUT_FACES: pks} if listed else {})
        save_model(replace(generation(name + HOLDOUT_SUFFIX), facts=left_out), resources.generations.folder)
    with writing(resources.database) as session:
        resources.generations.keep(session, model)
    return model


def known(resources: Resources, model: str, collection: str = "c") -> tuple[str, set[str]]:
    """What is measured in the model's stead, and the people that it may have learned from."""
    taken = read(resources, collection)
    with reading(resources.database) as session:
        exposed = exposure(session, resources.generations, model, [collection])
        seen = learned_from(session, exposed, taken)
    return exposed.measured_as.id, {face.subject_id or "" for face, s in zip(taken.faces, seen, strict=True) if s}


def held_out(resources: Resources, share: float = 0.3) -> set[str]:
    taken = read(resources)
    out = embedder_fit.held_out(taken, share)
    return {face.subject_id or "" for face, o in zip(taken.faces, out, strict=True) if o}


EVERYBODY = {f"p{i}" for i in range(PEOPLE)}


def test_the_built_in_model_has_learned_from_nobody(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    assert known(resources, FIRST) == (FIRST, set())


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "recomputed"])
def test_a_model_of_this_collection_is_measured_without_its_people_held_out(resources: Resources, listed: bool) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1", listed=listed)
    kept_out = held_out(resources)
    assert 1 < len(kept_out) < PEOPLE
    assert known(resources, "m1") == ("m1-held-out", EVERYBODY - kept_out)


def test_one_that_learned_from_everybody_knows_all_but_those_who_came_later(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1", holdout=0.0)
    enrol(resources, "c", range(50, 55), shots=SHOTS)
    assert known(resources, "m1") == ("m1", EVERYBODY)
    with writing(resources.database) as session:
        session.add(Removal(collection_id="c", face_pk=10**6, change=10**6))
    assert known(resources, "m1")[1] == EVERYBODY | {f"p{i}" for i in range(50, 55)}, "they may be the same again"


def test_after_an_erasure_newcomers_count_who_would_have_been_held_out(resources: Resources) -> None:
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


def test_a_label_that_joins_somebody_held_out_with_somebody_seen_makes_both_seen(resources: Resources) -> None:
    faces = enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1")
    seen = known(resources, "m1")[1]
    one, other = min(seen), min(EVERYBODY - seen)
    first = {f"p{i}": faces[SHOTS * i].pk for i in range(PEOPLE)}
    pair = sorted((first[one], first[other]))
    with writing(resources.database) as session:
        session.add(Label(task="identity", face_a=pair[0], face_b=pair[1], same=True, by="ann"))
    assert known(resources, "m1")[1] == seen | {other}


def test_another_collections_model_knows_nobody_but_whose_photo_is_there_too(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    enrol(resources, "d", range(15, 40), shots=1)
    learn(resources, "m1", "d")
    assert known(resources, "m1") == ("m1", {f"p{i}" for i in range(15, PEOPLE)})


def test_what_a_model_went_on_from_counts_too(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    enrol(resources, "d", range(100, 110), shots=SHOTS)
    learn(resources, "m1")
    learn(resources, "m2", "d", start_from="m1")
    assert known(resources, "m2") == ("m2-held-out", EVERYBODY - held_out(resources))
    learn(resources, "m3", "d", start_from="m1", holdout=0.0)
    assert known(resources, "m3") == ("m3", EVERYBODY), "it went on from m1 itself, which knows everybody"


def test_what_fits_nothing_has_learned_from_nobody(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    with writing(resources.database) as session:
        model = Model("m1", Recipe(), "cosine", Cosine(), facts={"changes": {"c": 10**6}})
        resources.generations.keep(session, model)
    assert known(resources, "m1") == ("m1", set())


def test_of_a_collection_that_was_made_anew_nobody_is_taken_for_new(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1", holdout=0.0)
    with writing(resources.database) as session:
        session.get_one(Collection, "c").created_at += 10**6
        for face in session.scalars(select(Face)):
            face.created_at += 10**6
    assert known(resources, "m1")[1] == EVERYBODY


def test_a_collection_recreated_while_a_model_was_trained_is_another_one(resources: Resources) -> None:
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
        snapshot = training_data.taken(session, Training(snapshot={}), plan())
        assert len(training_data.read(session, plan(), snapshot).faces) == PEOPLE * SHOTS
        session.get_one(Collection, "c").created_at += 1.0
        assert training_data.read(session, plan(), snapshot).faces == []
