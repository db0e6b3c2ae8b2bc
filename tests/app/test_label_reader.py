"""Labels that are read as they are added mean what they mean when all are read at once."""

import math
import time
from uuid import uuid4

import numpy as np
import pytest
from sqlalchemy import event, insert, select, update

from app.db.session import reading, writing
from app.db.tables import Deployment, Label, Subject, Task, now
from app.resources import Resources
from app.serving.labels.constraints import ConstrainedFace, ServedConstraints, SettledLabels, derive_constraints
from app.serving.labels.reader import LabelReader, read_constraints
from ml.identification.label_constraints import LabelledPair
from tests.rows import GalleryWriter, make_model

MODEL = make_model("m-one", dim=2)
NAMES = ("ann", "ann", "ben", "ben", "cid", *[None] * 9)


class Labelled:
    """A collection of faces with labels, and the reader that follows them."""

    def __init__(self, resources: Resources, task: str = "identity") -> None:
        self.resources, self.task = resources, task
        self.collection = f"staff-{uuid4().hex[:8]}"
        self.gallery = GalleryWriter(resources, self.collection).make(MODEL, task)
        self.gallery.add({MODEL.id: np.zeros((len(NAMES), 2), np.float32)}, NAMES, task=task)
        self.reader = LabelReader(self.collection, task)
        self.read(all_labels=True)

    def label(self, first: int, second: int, same: bool, by: str = "eve") -> None:
        """Label two faces by their numbers, as another process does."""
        pair = sorted((self.gallery.pks[first], self.gallery.pks[second]))
        row = {"task": self.task, "face_a": pair[0], "face_b": pair[1], "same": same, "by": by}
        with writing(self.resources.database) as session:
            session.execute(insert(Label), [row])

    def read(self, all_labels: bool = False) -> ServedConstraints:
        with reading(self.resources.database) as session:
            read = self.reader.read_all if all_labels else self.reader.read_new
            return read(session, 1)

    def check(self) -> ServedConstraints:
        """Read what is new, and compare it with all labels read at once."""
        new = self.read()
        with reading(self.resources.database) as session:
            known = read_constraints(session, self.collection, self.task, 1)
        assert vars(new.constraints) == vars(known.constraints)
        for name in ("faces", "subjects", "left_out"):
            assert getattr(new, name) == getattr(known, name), name
        for name in ("joined_faces", "members", "labels"):
            of_new, of_known = getattr(new, name), getattr(known, name)
            assert {key: set(of_new[key]) for key in of_new} == {key: set(of_known[key]) for key in of_known}, name
        assert sorted(new.settled.labels) == sorted(known.settled.labels)
        assert (new.settled.faces, new.settled.ends_of_use) == (known.settled.faces, known.settled.ends_of_use)
        return new


@pytest.fixture
def labelled(lasting: Resources) -> Labelled:
    return Labelled(lasting)


@pytest.mark.parametrize("seed", range(4))
def test_labels_read_one_by_one_mean_what_all_mean(labelled: Labelled, seed: int) -> None:
    draw = np.random.default_rng(seed)
    for _ in range(40):
        for _ in range(draw.integers(1, 3)):
            first, second = draw.choice(len(NAMES), 2, replace=False).tolist()
            labelled.label(first, second, bool(draw.random() < 0.4), by=str(draw.choice(["eve", "eve", "max"])))
        labelled.check()


def test_labels_of_another_task_only_separate(lasting: Resources) -> None:
    with writing(lasting.database) as session:
        session.add(Task(name=(task := f"pose-{uuid4().hex[:8]}")))
    labelled = Labelled(lasting, task)
    for first, second, same in ((0, 5, False), (5, 6, True), (5, 7, False)):
        labelled.label(first, second, same)
        served = labelled.check()
    assert (served.constraints.joined, len(served.constraints.separated)) == ({}, 3)


def test_only_new_labels_are_read(labelled: Labelled) -> None:
    """What the API never does shows it: an old label is edited, and nobody is told."""
    labelled.label(0, 5, True)
    assert len(labelled.check().constraints.joined) == 2
    with writing(labelled.resources.database) as session:
        session.execute(update(Label).where(Label.face_a == labelled.gallery.pks[0]).values(same=False))
    labelled.label(2, 6, True)
    assert len(labelled.read().constraints.joined) == 4
    assert len(labelled.read(all_labels=True).constraints.joined) == 2


def test_new_labels_cost_as_much_after_many(labelled: Labelled) -> None:
    """The statements tell what is read: the rule, the new labels, the faces without a label before."""
    for number in range(5, 13):
        labelled.label(0, number, False)
    labelled.read()
    labelled.label(0, 13, False)
    statements: list[tuple[str, int]] = []
    with reading(labelled.resources.database) as session:
        connection = session.connection()
        event.listen(connection, "after_cursor_execute", lambda *args: statements.append((args[2], args[1].rowcount)))
        labelled.reader.read_new(session, 1)
    assert len(statements) <= 3, statements


def test_a_reader_begins_anew_after_an_error(labelled: Labelled, monkeypatch: pytest.MonkeyPatch) -> None:
    labelled.label(0, 5, True)
    labelled.read()
    labelled.label(5, 6, True)
    with monkeypatch.context() as patched:
        patched.setattr("app.serving.labels.reader._read_faces", _raise)
        with pytest.raises(RuntimeError):
            labelled.read()
    assert len(labelled.check().constraints.joined) == 3


def test_a_new_rule_settles_all_pairs_anew(labelled: Labelled) -> None:
    labelled.label(0, 5, True)
    assert labelled.check()
    with writing(labelled.resources.database) as session:
        session.get_one(Deployment, (labelled.collection, "identity")).label_quorum = 2
    assert not labelled.check()
    labelled.label(0, 5, True, by="max")
    assert labelled.check()
    with writing(labelled.resources.database) as session:
        session.get_one(Deployment, (labelled.collection, "identity")).label_weights = "agreement"
    labelled.label(2, 6, True)
    labelled.check()


def test_labels_of_people_whose_use_has_ended_are_left_out(labelled: Labelled) -> None:
    """Whether their use ends before their label is read, or after it."""
    labelled.label(4, 7, True)
    labelled.read()
    with writing(labelled.resources.database) as session:
        subjects = session.scalars(select(Subject).where(Subject.collection_id == labelled.collection))
        {subject.id: subject for subject in subjects}["ann"].consent = False
    labelled.label(0, 5, True)
    served = labelled.check()
    [ann] = served.left_out
    assert served.settled.list_ended(now()) == {ann}
    assert served.settled.list_ended(math.inf) == {ann}
    labelled.label(2, 6, True)
    assert len(labelled.check().constraints.joined) == 4


def _raise(*_: object) -> None:
    raise RuntimeError("the database has gone away")


def test_a_large_group_of_joined_faces_is_noted_once() -> None:
    """Its members were listed once for each of its faces."""
    number = 20_000
    faces = {pk: ConstrainedFace(pk, str(pk), "gallery", None, None) for pk in range(number)}
    labels = [LabelledPair(pk, pk + 1, True) for pk in range(number - 1)]
    started = time.process_time()
    served = derive_constraints(SettledLabels(labels=labels, faces=faces), 1, frozenset())
    assert time.process_time() - started < 5
    assert [len(members) for members in served.members.values()] == [number]
    assert [set(joined) for joined in served.joined_faces.values()] == [set(faces)]
