"""A labeller who gives 1,000 random answers: real trainings, the gate, and what agreement makes of it."""

import itertools
from typing import Any

import numpy as np
import pytest

from app.db.session import reading, writing
from app.db.tables import Deployment, Face, Label, Training
from app.errors import Conflict
from app.galleries.label_consensus import decide_collection, read_collection_votes
from app.learning.plan import ComponentChoice, Plan, Source
from app.queue.jobs import enqueue
from app.queue.messages import Publish
from app.resources import Resources
from ml.labeller_reliability import compare_with_others, estimate_reliability
from tests.gallery import context, enrol
from tests.workers.test_train import LDML, begin
from workers.handlers.publish import publish_model
from workers.handlers.train import train_model
from workers.training.training_data import read_training_data, record_snapshot

PEOPLE, PHOTOS, RANDOM_ANSWERS = 48, 3, 1000
HONEST = ("ana", "ben", "eva")
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def add_labels(resources: Resources, faces: list[Face], honest_pairs: int) -> None:
    """Three honest labellers judge the same pairs, and half of the random answers are on those."""
    rng = np.random.default_rng(0)
    subject = {face.pk: face.subject_pk for face in faces}
    pks = [face.pk for face in faces]
    people = rng.integers(0, PEOPLE, honest_pairs)
    same = [(pks[PHOTOS * who], pks[PHOTOS * who + 1 + i % 2]) for i, who in enumerate(people.tolist())]
    drawn = rng.choice(pks, (4 * RANDOM_ANSWERS, 2)).tolist()
    different = [(min(p), max(p)) for p in drawn if subject[p[0]] != subject[p[1]]]
    honest = [*dict.fromkeys(same), *dict.fromkeys(different[:honest_pairs])]
    others = [pair for pair in dict.fromkeys(different) if pair not in set(honest)]
    judged = (honest + others)[:RANDOM_ANSWERS]
    answers = rng.random(RANDOM_ANSWERS) < 0.5
    with writing(resources.database) as session:
        for by in HONEST:
            for a, b in honest:
                session.add(Label(task="identity", face_a=a, face_b=b, same=subject[a] == subject[b], by=by))
        for (a, b), answer in zip(judged, answers.tolist(), strict=True):
            session.add(Label(task="identity", face_a=a, face_b=b, same=answer, by="mallory"))


def set_weights(resources: Resources, weights: str) -> None:
    with writing(resources.database) as session:
        session.get_one(Deployment, ("c", "identity")).label_weights = weights


def make_plan(**options: Any) -> Plan:
    sources = (Source(origin="labels", **options),)
    lbp = (ComponentChoice(name="lbp"),)
    return Plan(
        collection="c", method="ldml", descriptors=lbp, options=LDML | {"min_pairs": 4}, sources=sources, holdout=0.4
    )


def run_training(resources: Resources, plan: Plan) -> dict[str, Any]:
    job, message = begin(resources, **dict(plan))
    return train_model(message, context(resources, job))


def publish(resources: Resources, model: str) -> dict[str, Any]:
    message = Publish(collection="c", tasks=("identity",), model=model, by="test")
    with writing(resources.database) as session:
        job = enqueue(session, message)
    return publish_model(message, context(resources, job))


@on_sqlite
def test_the_gate_refuses_what_random_answers_taught(resources: Resources) -> None:
    faces = enrol(resources, "c", range(PEOPLE), shots=PHOTOS)
    add_labels(resources, faces, honest_pairs=0)
    result = run_training(resources, make_plan())
    assert not result["report"]["tasks"], "random answers join all people, so that nobody is left to measure on"
    with pytest.raises(Conflict) as refused:
        publish(resources, result["model"])
    assert refused.value.code in ("GateRefused", "NotMeasured")
    with reading(resources.database) as session:
        assert session.get_one(Deployment, ("c", "identity")).champion == "lbp-l2"


@on_sqlite
def test_agreement_shows_the_random_answers_and_trainings_learn_nothing_from_them(resources: Resources) -> None:
    faces = enrol(resources, "c", range(PEOPLE), shots=PHOTOS)
    add_labels(resources, faces, honest_pairs=250)
    set_weights(resources, "agreement")
    subject = {face.pk: face.subject_pk for face in faces}
    with reading(resources.database) as session:
        votes = read_collection_votes(session, "c", "identity")
        settled = decide_collection(session, "c", "identity")
    compared, agreed = compare_with_others(votes)["mallory"]
    assert 0.4 < agreed / compared < 0.6
    assert estimate_reliability(votes).weight_of["mallory"] == 0
    assert len(settled) == sum("ana" in of_pair for of_pair in votes.values()), "she decides no pair alone"
    truth = [subject[a] == subject[b] for a, b in settled.pairs.tolist()]
    assert settled.same.tolist() == truth
    reports = {w: run_training(resources, make_plan(weights=w))["report"] for w in ("equal", "agreement")}
    assert not reports["equal"]["tasks"], "her answers join all people, so that nobody is left to measure on"
    assert reports["agreement"]["tasks"]["identity"]["difference"]["mAP"]["high"] > 0


@on_sqlite
def test_labels_of_faces_that_a_training_does_not_read_do_not_change_its_weights(resources: Resources) -> None:
    """So a refit without some people weighs labellers as if these people had never been labelled."""
    faces = enrol(resources, "c", range(PEOPLE), shots=PHOTOS)
    plan = make_plan(weights="agreement")
    pairs = [(faces[i].pk, faces[i + 3].pk) for i in range(0, 60, 3)]
    with writing(resources.database) as session:
        for a, b in pairs:
            session.add(Label(task="identity", face_a=a, face_b=b, same=False, by="ana"))
    before = read_pair_weights(resources, plan)
    others = enrol(resources, "other", range(60, 90), shots=2)
    with writing(resources.database) as session:
        for first, second in itertools.pairwise(others):
            for by, same in (("ana", True), ("ben", False), ("eva", False)):
                session.add(Label(task="identity", face_a=first.pk, face_b=second.pk, same=same, by=by))
    assert read_pair_weights(resources, plan) == before


def read_pair_weights(resources: Resources, plan: Plan) -> list[float]:
    with reading(resources.database) as session:
        snapshot = record_snapshot(session, Training(snapshot={}), plan)
        [task] = read_training_data(session, plan, snapshot).tasks
        return list(task.weights.tolist())
