"""The people of a collection that a model may have learned from."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from app.db.session import reading, writing
from app.db.tables import Collection, Erasure, Face, Label, Removal, Subject, Training
from app.galleries.subjects import erase_faces, erase_subject, get_subject
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

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
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
        seen = find_learned_faces(session, resources.installation_key, exposure, data)
    return exposure.measured_as.id, {face.subject_id or "" for face, s in zip(data.faces, seen, strict=True) if s}


def held_out(resources: Resources, share: float = 0.3) -> set[str]:
    data = read(resources)
    out = choose_held_out_faces(data, share)
    return {face.subject_id or "" for face, o in zip(data.faces, out, strict=True) if o}


EVERYBODY = {f"p{i}" for i in range(PEOPLE)}


@on_sqlite
def test_the_built_in_model_has_learned_from_nobody(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    assert known(resources, LBP_MODEL) == (LBP_MODEL, set())


@on_sqlite
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "recomputed"])
def test_a_model_of_this_collection_is_measured_without_its_people_held_out(resources: Resources, listed: bool) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1", listed=listed)
    kept_out = held_out(resources)
    assert 1 < len(kept_out) < PEOPLE
    assert known(resources, "m1") == ("m1-held-out", EVERYBODY - kept_out)


@on_sqlite
def test_a_model_without_holdout_has_seen_everybody_except_later_people(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1", holdout=0.0)
    enrol(resources, "c", range(50, 55), shots=SHOTS)
    assert known(resources, "m1") == ("m1", EVERYBODY)
    with writing(resources.database) as session:
        session.add(Removal(collection_id="c", face_pk=10**6, change=10**6))
    assert known(resources, "m1")[1] == EVERYBODY | {f"p{i}" for i in range(50, 55)}, "they may be the same again"


@on_sqlite
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


def erase_person(resources: Resources, who: int) -> None:
    with writing(resources.database) as session:
        erase_subject(session, session.get_one(Collection, "c"), get_subject(session, "c", f"p{who}"))


def erase_all_faces(resources: Resources, collection: str = "c") -> None:
    with writing(resources.database) as session:
        erase_faces(session, session.get_one(Collection, collection))


def rename_people(resources: Resources) -> set[str]:
    """Have the subjects of the collection another id, and return these ids."""
    with writing(resources.database) as session:
        people = update(Subject).where(Subject.collection_id == "c").values(id="again-" + Subject.id)
        return set(session.scalars(people.returning(Subject.id)))


def test_people_who_are_enrolled_again_by_the_same_photos_under_other_ids_count_as_seen(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1")
    erase_all_faces(resources)
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    again = rename_people(resources)
    assert len(again) == PEOPLE
    assert held_out(resources), "by their new ids"
    assert known(resources, "m1")[1] == again


@on_sqlite
def test_people_whose_photos_are_not_listed_by_a_receipt_count_as_seen(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1")
    erase_all_faces(resources)
    enrol(resources, "c", range(PEOPLE), shots=SHOTS, file="other")
    again = rename_people(resources)
    newcomers = held_out(resources)
    assert known(resources, "m1")[1] == again - newcomers, "the limit: other photos under other ids"
    monkeypatch.setattr("app.galleries.erasure_receipts.MAX_LISTED_IDS", 1)
    with writing(resources.database) as session:
        session.execute(update(Erasure).values(targets={}, contents={"photos": ["hash"]}))
    assert known(resources, "m1")[1] == again


@on_sqlite
def test_after_the_erasure_of_a_person_others_stay_held_out(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1")
    before = held_out(resources)
    erased = min(EVERYBODY - before)
    erase_person(resources, int(erased[1:]))
    assert known(resources, "m1")[1] == EVERYBODY - before - {erased}


@on_sqlite
def test_only_people_who_were_held_out_count_as_unseen_when_they_are_enrolled_again(resources: Resources) -> None:
    """Somebody with one photo was not, whatever the name draws."""
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    out = sorted(held_out(resources))
    one = int(out[0][1:])
    with writing(resources.database) as session:
        second = select(Face).join(Subject, Subject.pk == Face.subject_pk).where(Subject.id == out[0]).limit(1)
        session.delete(session.scalars(second).one())
    learn(resources, "m1")
    erase_person(resources, one)
    erase_person(resources, int(out[1][1:]))
    enrol(resources, "c", [one, int(out[1][1:])], shots=SHOTS)
    assert held_out(resources) == set(out)
    assert known(resources, "m1")[1] == (EVERYBODY - set(out)) | {out[0]}


@on_sqlite
@pytest.mark.parametrize("is_restored", [True, False])
def test_those_held_out_are_known_again_in_a_restored_collection_but_not_in_one_that_was_made_anew(
    resources: Resources, is_restored: bool
) -> None:
    """Faces keep the time of their enrolment in a restore, not their numbers."""
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1")
    out = held_out(resources)
    with writing(resources.database) as session:
        session.get_one(Collection, "c").created_at += 10**6
        for face in session.scalars(select(Face)):
            face.created_at += 0 if is_restored else 10**6
    assert known(resources, "m1")[1] == (EVERYBODY - out if is_restored else EVERYBODY)


@on_sqlite
def test_people_whose_photos_were_erased_elsewhere_after_the_training_count_as_seen(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    enrol(resources, "d", range(15, 40), shots=1)
    learn(resources, "m1", "d")
    learn(resources, "m2", "d", start_from="m1")
    erase_all_faces(resources, "d")
    for model in ("m1", "m2"):
        assert known(resources, model) == (model, {f"p{i}" for i in range(15, PEOPLE)})


@on_sqlite
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


@on_sqlite
def test_a_model_of_another_collection_has_seen_only_people_whose_photo_is_in_both(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    enrol(resources, "d", range(15, 40), shots=1)
    learn(resources, "m1", "d")
    assert known(resources, "m1") == ("m1", {f"p{i}" for i in range(15, PEOPLE)})


@on_sqlite
def test_a_model_has_seen_everybody_of_a_copy_of_its_collection_but_those_enrolled_later(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    enrol(resources, "studio", range(100, 105), shots=SHOTS)
    learn(resources, "m1", "studio", holdout=0.0)
    assert known(resources, "m1") == ("m1", set())
    with writing(resources.database) as session:
        session.get_one(Collection, "c").copied_from = ["studio"]
    enrol(resources, "c", range(50, 55), shots=SHOTS)
    assert known(resources, "m1") == ("m1", EVERYBODY)


@on_sqlite
def test_people_seen_by_the_starting_model_count_as_seen(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    enrol(resources, "d", range(100, 110), shots=SHOTS)
    learn(resources, "m1")
    learn(resources, "m2", "d", start_from="m1")
    assert known(resources, "m2") == ("m2-held-out", EVERYBODY - held_out(resources))
    learn(resources, "m3", "d", start_from="m1", holdout=0.0)
    assert known(resources, "m3") == ("m3", EVERYBODY), "it went on from m1 itself, which knows everybody"


@on_sqlite
def test_a_method_without_a_fit_has_learned_from_nobody(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    with writing(resources.database) as session:
        model = Model("m1", Recipe(), "cosine", Cosine(), provenance={"changes": {"c": 10**6}})
        resources.models.keep(session, model)
    assert known(resources, "m1") == ("m1", set())


@on_sqlite
def test_people_of_a_recreated_collection_do_not_count_as_unseen(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1", holdout=0.0)
    with writing(resources.database) as session:
        session.get_one(Collection, "c").created_at += 10**6
        for face in session.scalars(select(Face)):
            face.created_at += 10**6
    assert known(resources, "m1")[1] == EVERYBODY


@on_sqlite
def test_a_collection_recreated_during_a_training_is_another_collection(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    learn(resources, "m1", holdout=0.0)
    enrol(resources, "c", range(50, 55), shots=SHOTS)
    assert known(resources, "m1")[1] == EVERYBODY
    with writing(resources.database) as session:
        session.get_one(Collection, "c").created_at -= 1.0  # still before the model was kept
    assert known(resources, "m1")[1] == EVERYBODY | {f"p{i}" for i in range(50, 55)}


@on_sqlite
def test_a_training_reads_no_faces_of_a_later_collection_of_the_same_id(resources: Resources) -> None:
    enrol(resources, "c", range(PEOPLE), shots=SHOTS)
    with writing(resources.database) as session:
        snapshot = training_data.record_snapshot(session, Training(snapshot={}), plan())
        assert len(training_data.read_training_data(session, plan(), snapshot).faces) == PEOPLE * SHOTS
        session.get_one(Collection, "c").created_at += 1.0
        assert training_data.read_training_data(session, plan(), snapshot).faces == []
