"""Which labels a training reads, what it records of them, and what its model says of them."""

from collections.abc import Sequence

import pytest
from sqlalchemy import select

from app.db.session import reading, writing
from app.db.tables import Face, Label, ModelRecord, Training
from app.learning.plan import Source
from app.learning.refit import make_refit
from app.resources import Resources
from ml.embedder_training.examples import TaskExamples
from tests.gallery import context, enrol
from tests.workers.test_train import OURS, begin, of
from workers.handlers import train
from workers.training.training_data import LABELS, LAST_LABELS, read_training_data

WPCA = {"method": "wpca", "options": {"dim": 4}}


def add_label(resources: Resources, pair: Sequence[Face], same: bool, by: str = "ana") -> int:
    """Store a label of two faces, and return its pk."""
    a, b = sorted(face.pk for face in pair)
    with writing(resources.database) as session:
        label = Label(task="identity", face_a=a, face_b=b, same=same, by=by)
        session.add(label)
        session.flush()
        return label.pk


def label_pairs(resources: Resources, faces: Sequence[Face], undecided: int) -> None:
    """Label the two photos of the first three people as the same; as many pairs more are undecided."""
    for who in range(3):
        add_label(resources, faces[2 * who : 2 * who + 2], same=True)
    for i in range(undecided):
        for by, same in (("ana", True), ("ben", False)):
            add_label(resources, (faces[0], faces[2 * i + 2]), same, by)


def read_examples(resources: Resources, training: Training) -> TaskExamples:
    """Read what a training learns from, as a second run of it does."""
    with reading(resources.database) as session:
        plan = train._read_plan(training, resources.settings)
        [examples] = read_training_data(session, plan, training.snapshot).tasks
        return examples


def test_a_training_and_its_model_count_the_labels_of_their_collection_alone(resources: Resources) -> None:
    label_pairs(resources, enrol(resources, "other", range(50, 60), shots=2), undecided=5)
    label_pairs(resources, enrol(resources, "c", range(12), shots=2), undecided=2)
    job, message = begin(resources, **WPCA)
    result = train.train_model(message, context(resources, job))
    assert result["report"]["tasks"]["identity"]["labels"]["unsettled"] == 2
    with reading(resources.database) as session:
        facts = session.get_one(ModelRecord, result["model"]).manifest["facts"]
        last = session.scalars(select(Label.pk).order_by(Label.pk.desc())).first()
    assert facts[LABELS] == {"identity": {"pairs": 3}}
    assert LAST_LABELS not in facts, "it says how many labels the installation has"
    assert of(resources, message).snapshot[LAST_LABELS] == {"identity": last}


def test_a_training_that_is_started_again_reads_the_same_labels(resources: Resources) -> None:
    faces = enrol(resources, "c", range(12), shots=2)
    label_pairs(resources, faces, undecided=1)
    job, message = begin(resources, **WPCA)
    train.train_model(message, context(resources, job))
    training = of(resources, message)
    before = read_examples(resources, training)
    add_label(resources, faces[:2], same=False)  # ana changes her mind
    add_label(resources, faces[8:10], same=True)
    after = read_examples(resources, training)
    assert after.pairs.tolist() == before.pairs.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert after.same.all()
    assert (before.unsettled, after.unsettled) == (1, 1)


def test_a_refit_of_a_training_that_listed_its_labels_reads_these(resources: Resources) -> None:
    faces = enrol(resources, "c", range(12), shots=2)
    listed = [add_label(resources, faces[2 * who : 2 * who + 2], same=True) for who in range(3)]
    others = enrol(resources, "other", range(50, 52), shots=2)
    listed += [add_label(resources, others[:2], same=True)]
    job, message = begin(resources, **WPCA)
    model = train.train_model(message, context(resources, job))["model"]
    with writing(resources.database) as session:
        training = session.get_one(Training, message.training)
        snapshot = {part: value for part, value in training.snapshot.items() if part != LAST_LABELS}
        training.snapshot = {**snapshot, LABELS: {"identity": listed}}
    add_label(resources, faces[8:10], same=True)
    with writing(resources.database) as session:
        refit = make_refit(session, resources.installation_key, model, "c", ["p5"])
        session.expunge(refit)
    assert read_examples(resources, refit).pairs.tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("labelled_in", ["c", "other"])
def test_a_label_across_two_collections_is_read_where_one_of_them_is_labelled(
    resources: Resources, labelled_in: str
) -> None:
    faces, others = (enrol(resources, name, range(12), shots=2) for name in ("c", "other"))
    add_label(resources, (faces[0], others[2]), same=True)
    add_label(resources, (others if labelled_in == "c" else faces)[:2], same=True)
    sources = (
        *OURS[:1],
        Source(origin="subjects", collection="other"),
        Source(origin="labels", collection=labelled_in),
    )
    job, message = begin(resources, **WPCA, sources=sources)
    train.train_model(message, context(resources, job))
    assert read_examples(resources, of(resources, message)).pairs.tolist() == [[0, 26]]
