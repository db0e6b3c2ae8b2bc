"""What a model has learned of a gallery that is a copy of the one that it was trained in, or shares photos with it."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import delete, select, update

from app.db.session import reading, writing
from app.db.tables import Collection, Deployment, Embedding, Erasure, Face, ModelRecord, StoredCompensation, now
from app.enrolment.bulk_rows import insert_embeddings
from app.galleries.erasures import FINAL
from app.galleries.subjects import erase_faces
from app.resources import Resources
from app.serving.calibration import gallery_calibration
from app.serving.calibration.learned_gallery import read_learned_gallery
from app.serving.index_builder import IndexKey
from ml.calibration import Calibration
from ml.distances import EUCLIDEAN
from ml.identification.open_set import OpenSetCalibration, PersonThreshold
from ml.identification.person_distance import DecisionRule
from ml.identification.stranger_searches import StrangerSearches
from ml.model import Model
from ml.types import Rows
from tests.rows import GalleryWriter, make_model, people
from workers.worker import Worker

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
HELD_OUT = StrangerSearches.from_distances("held-out", np.linspace(5, 9, 50), np.arange(50), 120)
LEARNED = {
    "training": "t",
    "collection": "studio",
    "changes": {"studio": 1},
    "open_set": {"identity": OpenSetCalibration(DecisionRule(), (HELD_OUT,)).to_dict()},
}


def trained_in_studio() -> Model:
    return replace(make_model("m-learned"), provenance=LEARNED)


def enrol(resources: Resources, collection: str, model: Model, photos: Sequence[int], start: int = 0) -> GalleryWriter:
    """Enrol 40 people with three faces each; `photos` are the numbers of the photos of the first of them."""
    gallery = GalleryWriter(resources, collection).make(model)
    rows, subjects = people(40, 3, seed=start)
    gallery.add({model.id: rows}, [f"{start}-{name}" for name in subjects])
    with writing(resources.database) as session:
        for pk, photo in zip(gallery.pks, photos, strict=False):
            session.execute(update(Face).where(Face.pk == pk).values(image_id=f"{photo:064}"))
    return gallery


def note_copy(resources: Resources, collection: str, sources: list[str]) -> None:
    with writing(resources.database) as session:
        session.get_one(Collection, collection).copied_from = sources


def calibrate(resources: Resources, model: Model) -> OpenSetCalibration:
    """Measure how strangers score in the collection "staff"."""
    measured = gallery_calibration.measure_gallery(resources, "staff", "identity", model)["open_set"]
    return OpenSetCalibration.from_dict(measured["calibration"])


def find_threshold(resources: Resources, model: Model) -> PersonThreshold:
    """Measure the threshold at which a tenth of strangers would be named in the collection "staff"."""
    threshold = calibrate(resources, model).threshold(0.1, 600)
    assert threshold is not None
    return threshold


def strangers(resources: Resources, model: Model) -> tuple[list[tuple[str, int]], bool]:
    """Measure the collection "staff". Returns by whose searches, of how many people, and whether it is optimistic."""
    calibration = calibrate(resources, model)
    return [(searches.source, searches.people) for searches in calibration.strangers], calibration.optimistic


def test_searches_in_another_collection_of_the_training_stand_for_it_while_it_is_there(resources: Resources) -> None:
    of_staff = StrangerSearches.from_distances("held-out", np.linspace(4, 8, 45), np.arange(45), 100)
    elsewhere = {"staff": OpenSetCalibration(DecisionRule(), (of_staff,)).to_dict()}
    read_both = LEARNED | {"changes": {"studio": 1, "staff": 1}, "open_set_elsewhere": elsewhere}
    model = replace(make_model("m-learned"), provenance=read_both)
    gallery = enrol(resources, "staff", model, ())
    assert strangers(resources, model) == ([("held-out", 45)], True), "not the 50 of the training's collection"
    gallery.remove(gallery.pks[:80])
    assert strangers(resources, model) == ([], True)


def test_newcomers_count_by_their_share_of_the_people(resources: Resources) -> None:
    trained_here = LEARNED | {"collection": "staff", "changes": {"staff": 1}}
    model = replace(make_model("m-learned"), provenance=trained_here)
    gallery = enrol(resources, "staff", model, ())
    rows, subjects = people(10, 2, seed=9)
    gallery.add({model.id: rows}, [f"new-{name}" for name in subjects])
    gallery.add({model.id: rows[:6]}, [None] * 6, role="distractor")
    calibration = calibrate(resources, model)
    assert [searches.people for searches in calibration.strangers] == [50, 10, 6]
    assert calibration.newcomer_share == pytest.approx(10 / 50)
    assert calibration.left_share == 1
    gallery.remove(gallery.pks[:30])
    calibration = calibrate(resources, model)
    assert (calibration.left_share, calibration.newcomer_share) == pytest.approx((90 / 120, 10 / 40))
    assert calibrate(resources, trained_in_studio()).newcomer_share == 0


@pytest.mark.parametrize(("read_at", "newcomers"), [(1e6, True), (3e6, False), (None, False)])
def test_people_who_are_enrolled_while_a_model_is_trained_are_newcomers(
    resources: Resources, read_at: float | None, newcomers: bool
) -> None:
    known_time = {} if read_at is None else {"read_at": read_at}
    trained_here = LEARNED | {"collection": "staff", "changes": {"staff": 1}} | known_time
    model = replace(make_model("m-learned"), provenance=trained_here)
    gallery = enrol(resources, "staff", model, ())
    rows, subjects = people(10, 2, seed=9)
    gallery.add({model.id: rows}, [f"new-{name}" for name in subjects])
    with writing(resources.database) as session:
        session.execute(update(Face).values(created_at=1.0))
        session.execute(update(Face).where(Face.pk.in_(gallery.pks[-20:])).values(created_at=2e6))
    assert [searches.people for searches in calibrate(resources, model).strangers] == ([50, 10] if newcomers else [50])


@pytest.mark.parametrize("origin", ["staff", "studio"])
def test_people_whom_a_first_model_has_not_read_are_strangers_to_it_in_its_own_collection(
    resources: Resources, origin: str
) -> None:
    fitted = LEARNED | {"collection": origin, "changes": {origin: 9}, "read_at": 2e12}
    gallery = enrol(resources, "staff", make_model("m-learned"), ())
    note_copy(resources, "staff", ["studio"] if origin == "studio" else [])
    model = replace(make_model("m-learned"), provenance=fitted | {"last_read": gallery.pks[59]})
    unread = [("leave-one-out", 20)] if origin == "staff" else []
    assert strangers(resources, model)[0] == [("held-out", 50), *unread]


def test_people_of_a_later_collection_are_no_strangers_to_a_model_that_went_on_from_one_of_the_earlier(
    resources: Resources,
) -> None:
    """When the earlier one was created is not noted of what a model has learned before it went on."""
    went_on = LEARNED | {"continued_changes": {"staff": 1}}
    model = replace(make_model("m-learned"), provenance=went_on)
    gallery = enrol(resources, "staff", model, ())
    with writing(resources.database) as session:
        made_at = session.get_one(ModelRecord, model.id).created_at
        session.get_one(Collection, "staff").created_at = made_at + 1
        session.execute(update(Face).where(Face.pk.in_(gallery.pks)).values(change=9, created_at=made_at + 2))
    assert strangers(resources, model) == ([], True)


@pytest.mark.parametrize("is_learned", [True, False], ids=["new photos", "labelled photos"])
def test_photos_that_may_not_stand_for_strangers_make_a_threshold_stricter_alone(
    resources: Resources, is_learned: bool
) -> None:
    """They may be of a poorer camera. Those of the same one say nothing: the model, or labels, keep people apart."""
    held_out = StrangerSearches.from_distances("held-out", np.linspace(0.48, 0.9, 200), np.arange(200), 600)
    searches = {"identity": OpenSetCalibration(DecisionRule(), (held_out,)).to_dict()}
    trained_here = LEARNED | {"collection": "staff", "changes": {"staff": 1}, "open_set": searches}
    model = replace(make_model("m-learned"), provenance=trained_here if is_learned else {})
    gallery = GalleryWriter(resources, "staff").make(model)
    rows, names = people(200, 3)
    gallery.add({model.id: rows}, names)
    own = list(gallery.pks)

    def enrol_photos(rows: Rows) -> None:
        gallery.add({model.id: rows}, names if is_learned else [None] * len(names))
        if not is_learned:
            gallery.label(list(zip(own, gallery.pks[-len(own) :], strict=True)), same=True)

    before = find_threshold(resources, model).person_distance
    if is_learned:
        enrol_photos(rows + np.float32(0.05))
        assert find_threshold(resources, model).person_distance == before
        gallery.remove(gallery.pks[-len(rows) :])
    enrol_photos(0.1 * people(200, 3, seed=5)[0] + 0.5)
    assert find_threshold(resources, model).person_distance < 0.8 * before


@pytest.mark.parametrize("count", [200, 140], ids=["enough people", "few people"])
def test_people_who_lost_their_good_photos_make_a_threshold_stricter_though_the_model_has_learned_from_them(
    resources: Resources, count: int
) -> None:
    """Each has two good photos, and one of a poorer camera in which people look alike."""
    held_out = StrangerSearches.from_distances("held-out", np.linspace(0.48, 0.9, 200), np.arange(200), 600)
    searches = {"identity": OpenSetCalibration(DecisionRule(), (held_out,)).to_dict()}
    trained_here = LEARNED | {"collection": "staff", "changes": {"staff": 1}, "open_set": searches}
    model = replace(make_model("m-learned"), provenance=trained_here)
    gallery = GalleryWriter(resources, "staff").make(model)
    rows, names = people(count, 3)
    rows[2::3] = 0.1 * people(count, 1, seed=5)[0] + 2
    gallery.add({model.id: rows}, names)

    before = find_threshold(resources, model)
    gallery.remove([pk for number, pk in enumerate(gallery.pks[:60]) if number % 3 < 2])
    after = find_threshold(resources, model)
    assert before.person_distance == held_out.threshold(0.1)[0]
    assert after.person_distance < 0.8 * before.person_distance
    assert after.source == "held-out"
    assert after.enough or count < 150


def test_people_whom_a_model_has_learned_from_are_heeded_where_newcomers_alone_decide(resources: Resources) -> None:
    """So many faces are gone from before the training that the people held out of it stand for nobody."""
    held_out = StrangerSearches.from_distances("held-out", np.linspace(0.48, 0.9, 200), np.arange(200), 6_000)
    searches = {"identity": OpenSetCalibration(DecisionRule(), (held_out,)).to_dict()}
    trained_here = LEARNED | {"collection": "staff", "changes": {"staff": 1}, "open_set": searches}
    model = replace(make_model("m-learned"), provenance=trained_here)
    gallery = GalleryWriter(resources, "staff").make(model)
    learned, newcomers = people(200, 1, seed=5), people(200, 2)
    gallery.add({model.id: 0.1 * learned[0] + 2}, learned[1])
    gallery.add({model.id: newcomers[0]}, [f"new-{name}" for name in newcomers[1]])
    calibration = calibrate(resources, model)
    [of_newcomers] = calibration.strangers
    threshold = calibration.threshold(0.1, 600)
    assert (of_newcomers.source, of_newcomers.people) == ("leave-one-out", 200)
    assert threshold is not None
    assert threshold.person_distance < 0.8 * of_newcomers.threshold(0.1)[0]


def make_distractors(gallery: GalleryWriter, pks: Sequence[int], change: int) -> None:
    with writing(gallery.resources.database) as session:
        values = {"role": "distractor", "subject_pk": None, "change": change, "created_at": 1.0}
        session.execute(update(Face).where(Face.pk.in_(pks)).values(values))
        session.get_one(Collection, gallery.collection).change = change


def test_distractors_that_were_people_when_a_model_was_trained_are_no_strangers_to_it(resources: Resources) -> None:
    trained_here = {"training": "t", "collection": "staff", "changes": {"staff": 2}}
    model = replace(make_model("m-learned"), provenance=trained_here)
    gallery = enrol(resources, "staff", model, ())
    gallery.add({model.id: people(50, 1, seed=7)[0]}, [None] * 50)
    make_distractors(gallery, gallery.pks[120:], change=2)
    assert strangers(resources, model) == ([("distractors", 50)], True), "no training learns from distractors"
    make_distractors(gallery, gallery.pks[:60], change=3)
    assert strangers(resources, model) == ([("distractors", 50)], True)
    make_distractors(gallery, gallery.pks[120:], change=4)
    assert strangers(resources, model) == ([], True), "nothing says that they were distractors then"


def test_distractors_whose_photos_a_model_has_learned_from_elsewhere_are_no_strangers(resources: Resources) -> None:
    model = trained_in_studio()
    enrol(resources, "studio", model, range(30))
    gallery = enrol(resources, "staff", model, range(30), start=1)
    make_distractors(gallery, gallery.pks[:40], change=9)
    assert strangers(resources, model) == ([("leave-one-out", 27), ("distractors", 10)], False)


@pytest.mark.parametrize("is_original_there", [True, False])
def test_people_of_a_copy_are_no_strangers_to_a_model_that_has_learned_from_the_original(
    resources: Resources, is_original_there: bool
) -> None:
    model = trained_in_studio()
    copy = enrol(resources, "staff", model, ())
    if is_original_there:
        enrol(resources, "studio", model, (), start=1)
    assert strangers(resources, model) == ([("leave-one-out", 40)], False), "nothing says that it is a copy"
    note_copy(resources, "staff", ["studio"])
    with writing(resources.database) as session:  # faces of a copy are as old as those that they were copied from
        session.execute(update(Face).where(Face.pk.in_(copy.pks)).values(created_at=1.0))
    assert strangers(resources, model) == ([("held-out", 50)], True)
    later, _ = people(30, 2, seed=5)
    copy.add({model.id: later}, [f"n{number // 2}" for number in range(60)])
    assert strangers(resources, model) == ([("held-out", 50), ("leave-one-out", 30)], True)


def test_people_with_the_same_photos_as_those_of_a_training_are_no_strangers_to_its_model(resources: Resources) -> None:
    model = trained_in_studio()
    enrol(resources, "studio", model, range(120))
    enrol(resources, "staff", model, range(120), start=1)
    assert strangers(resources, model) == ([("held-out", 50)], True)
    with writing(resources.database) as session:
        session.execute(delete(Face).where(Face.collection_id == "studio"))
    assert strangers(resources, model) == ([("leave-one-out", 40)], False), "the limit: nothing is left to compare"


def test_a_gallery_that_shares_few_photos_with_a_training_is_measured_by_its_other_people(resources: Resources) -> None:
    model = trained_in_studio()
    enrol(resources, "studio", model, range(120))
    enrol(resources, "staff", model, range(10), start=1)  # one photo is that of a person with two others
    assert strangers(resources, model) == ([("leave-one-out", 36), ("leave-one-out", 37)], False)


def enrol_again(resources: Resources, noise: float, photos_again: int, other_photos: int = 0) -> tuple[Model, Rows]:
    """Enrol 40 people in "studio", and 40 in "staff", of whose photos the first are those of "studio" in other files.

    other_photos: of those that are the same in "staff" so many are other ones, of the same people
    Returns a model that has learned from "studio", with its embeddings there.
    """
    model = replace(make_model("m-learned", dim=32), provenance=LEARNED)
    studio, staff = GalleryWriter(resources, "studio").make(model), GalleryWriter(resources).make(model)
    taken, names = people(40, 6, dim=32)[0].reshape(40, 2, 3, 32), people(40, 3)[1]
    learned, others = taken[:, 0].reshape(120, 32), taken[:, 1].reshape(120, 32)
    rows, _ = people(40, 3, dim=32, seed=2)
    rows[:photos_again] = learned[:photos_again]
    rows[:other_photos] = others[:other_photos]
    rows += np.random.default_rng(1).normal(0, noise, rows.shape).astype(np.float32)
    studio.add({model.id: learned}, names)
    staff.add({model.id: rows}, [f"q{name}" for name in names])
    return model, learned


def remove_embeddings(resources: Resources, collection: str) -> None:
    faces = select(Face.pk).where(Face.collection_id == collection)
    with writing(resources.database) as session:
        session.execute(delete(Embedding).where(Embedding.face_pk.in_(faces)))


@pytest.mark.parametrize("noise", [0.001, 0.05])
def test_people_whose_photos_were_saved_again_are_no_strangers_to_a_model_that_has_learned_from_them(
    resources: Resources, noise: float
) -> None:
    model, _ = enrol_again(resources, noise, 120)
    assert strangers(resources, model) == ([("held-out", 50)], True)
    with writing(resources.database) as session:
        deployment = session.get_one(Deployment, ("staff", "identity"))
        measured = gallery_calibration.measure_gallery(resources, "staff", "identity", model)
        deployment.measurements = {model.id: measured}
    remove_embeddings(resources, "studio")
    assert strangers(resources, model) == ([("held-out", 50)], True), "it was known when there was something to compare"


@pytest.mark.parametrize("photos_again", [0, 15])
def test_people_who_are_others_than_those_elsewhere_are_measured_here(resources: Resources, photos_again: int) -> None:
    model, _ = enrol_again(resources, 0.001, photos_again)
    assert strangers(resources, model) == ([("leave-one-out", 40)], False)


def test_people_are_no_strangers_to_a_model_that_has_learned_other_photos_of_them(resources: Resources) -> None:
    model, _ = enrol_again(resources, 0.001, 120, 120)
    assert strangers(resources, model) == ([("held-out", 50)], True)


def test_a_collection_of_which_some_faces_have_embeddings_by_the_model_is_compared_by_these(
    resources: Resources,
) -> None:
    """A publication embeds some, so that people who are enrolled later are recognised."""
    model, learned = enrol_again(resources, 0.001, 120)
    remove_embeddings(resources, "studio")
    assert strangers(resources, model) == ([("leave-one-out", 40)], False), "the limit: there is nothing to compare"
    with writing(resources.database) as session:
        pks = list(session.scalars(select(Face.pk).where(Face.collection_id == "studio").order_by(Face.pk)))
        insert_embeddings(session, model.id, "identity", pks[::2], learned[::2])
    measured = gallery_calibration.measure_gallery(resources, "staff", "identity", model)
    assert measured["seen_share"] > 0.9
    assert measured["open_set"]["calibration"]["optimistic"]


@pytest.mark.parametrize("restored", [True, False])
def test_people_of_a_later_collection_of_the_same_name_are_not_those_that_a_model_has_learned_from(
    resources: Resources, restored: bool
) -> None:
    """Those who were restored into it from a snapshot may be."""
    model, _ = enrol_again(resources, 0.001, 120)
    with writing(resources.database) as session:
        session.get_one(Collection, "studio").created_at += 10**6
        if not restored:
            session.execute(
                update(Face).where(Face.collection_id == "studio").values(created_at=Face.created_at + 10**6)
            )
        session.execute(update(ModelRecord).values(created_at=ModelRecord.created_at + 1))
    measured = gallery_calibration.measure_gallery(resources, "staff", "identity", model)
    assert (measured["seen_share"] or 0.0) > 0.9 if restored else measured["seen_share"] is None


def test_people_seen_elsewhere_are_recognised_among_distractors_that_show_them_twice(resources: Resources) -> None:
    """Two photos of a distractor do not tell how near two strangers may be."""
    model = replace(make_model("m-learned", dim=32), provenance=LEARNED)
    taken = people(140, 4, dim=32)[0].reshape(140, 4, 32)
    studio, staff = GalleryWriter(resources, "studio").make(model), GalleryWriter(resources).make(model)
    studio.add({model.id: taken[40:, :2].reshape(200, 32)}, [f"s{number // 2}" for number in range(200)])
    staff.add({model.id: taken[:40, :2].reshape(80, 32)}, [f"n{number // 2}" for number in range(80)])
    staff.add({model.id: taken[40:, 2:].reshape(200, 32)}, [None] * 200, role="distractor")
    measured = gallery_calibration.measure_gallery(resources, "staff", "identity", model)
    assert 0.3 < measured["seen_share"] < 0.9, "two thirds of its people and distractors, half of which are as near"
    assert strangers(resources, model) == ([("held-out", 50)], True)


def test_damaged_corrections_of_the_other_collection_do_not_keep_its_photos_from_being_recognised(
    resources: Resources,
) -> None:
    model, _ = enrol_again(resources, 0.001, 120)
    with writing(resources.database) as session:
        session.add(
            StoredCompensation(collection_id="studio", task="identity", model_id=model.id, version=1, data=b"damaged")
        )
    assert gallery_calibration.measure_gallery(resources, "staff", "identity", model)["seen_share"] > 0.9


def test_strangers_held_out_elsewhere_do_not_stand_for_a_gallery_that_the_training_only_read(
    resources: Resources,
) -> None:
    model = trained_in_studio()
    model = replace(model, provenance=LEARNED | {"changes": {"studio": 1, "staff": 1}})
    enrol(resources, "studio", model, range(120))
    enrol(resources, "staff", model, (), start=1)
    assert strangers(resources, model) == ([], True)


def test_a_model_of_no_training_has_learned_from_nobody(resources: Resources) -> None:
    model = make_model("m-random")
    gallery = enrol(resources, "staff", model, ())
    with reading(resources.database) as session:
        collection = session.scalars(select(Collection)).one()
        key = IndexKey("staff", "identity", model.id, collection.created_at)
        learned = read_learned_gallery(session, resources.installation_key, model, key)
    assert not learned.find_learned(np.array(gallery.pks)).any()
    assert not learned.is_trained_here


def test_the_changes_of_a_copy_are_not_those_of_its_original(resources: Resources) -> None:
    """It was restored from an older snapshot, so that its changes have lower numbers than the training."""
    model = replace(trained_in_studio(), provenance=LEARNED | {"changes": {"studio": 1000}})
    gallery = enrol(resources, "staff", model, range(60))
    copied = list(gallery.pks)
    note_copy(resources, "staff", ["studio"])
    with writing(resources.database) as session:
        session.execute(update(ModelRecord).values(created_at=now()))
    enrol(resources, "studio", model, range(120, 240))
    rows, subjects = people(40, 3, seed=3)
    gallery.add({model.id: rows}, [f"new-{name}" for name in subjects])
    with writing(resources.database) as session:
        for pk, photo in zip(gallery.pks[-3:], range(120, 123), strict=True):
            session.execute(update(Face).where(Face.pk == pk).values(image_id=f"{photo:064}"))
        created_at = session.get_one(Collection, "staff").created_at
    with reading(resources.database) as session:
        key = IndexKey("staff", "identity", model.id, created_at)
        learned = read_learned_gallery(session, resources.installation_key, model, key)
    assert learned.learned_change == 0
    is_learned = learned.find_learned(np.array(gallery.pks))
    assert np.array(gallery.pks)[is_learned].tolist() == copied + gallery.pks[-3:], "these photos are in the original"


def finish_erasures(resources: Resources) -> None:
    worker, until = Worker(resources, "default"), time.monotonic() + 30.0
    pending = select(Erasure.id).where(Erasure.state != FINAL)
    while time.monotonic() < until:
        while worker.step():
            continue
        with reading(resources.database) as session:
            if session.scalar(pending) is None:
                return
    raise AssertionError("an erasure does not end")


@pytest.mark.parametrize("is_final", [False, True])
@pytest.mark.parametrize("home", ["staff", "studio", "restored"])
def test_people_who_are_enrolled_again_after_an_erasure_are_no_strangers_to_the_model_that_has_learned_from_them(
    resources: Resources, monkeypatch: pytest.MonkeyPatch, home: str, is_final: bool
) -> None:
    """The same photos are recognised by the receipts, in the collection of the training, in a copy and in another."""
    monkeypatch.setattr("app.serving.reporter.MAX_REPORT_SECONDS", 0.0)  # no process serves them
    learned_from, emptied = {"restored": ("studio", "staff")}.get(home, (home, home))
    provenance = LEARNED | {"collection": learned_from, "changes": {learned_from: 1}}
    model = replace(trained_in_studio(), provenance=provenance)
    trained = enrol(resources, emptied, model, range(120))
    with writing(resources.database) as session:
        if home == "restored":
            session.get_one(Collection, emptied).copied_from = [learned_from]
        erase_faces(session, session.get_one(Collection, emptied), Face.pk.in_(trained.pks))
    if is_final:
        finish_erasures(resources)
    enrol_people_again(trained if emptied == "staff" else GalleryWriter(resources, "staff").make(model), model)
    assert strangers(resources, model) == ([("held-out", 50)], True)


def test_people_erased_between_two_trainings_are_no_strangers_to_the_second_model_which_continued_the_first(
    resources: Resources,
) -> None:
    provenance = LEARNED | {"collection": "staff", "changes": {"staff": 2}, "continued_changes": {"staff": 1}}
    model = replace(trained_in_studio(), provenance=provenance)
    gallery = enrol(resources, "staff", model, range(120))
    with writing(resources.database) as session:
        collection = session.get_one(Collection, "staff")
        erase_faces(session, collection, Face.pk.in_(gallery.pks))
        assert collection.change == 2
    enrol_people_again(gallery, model)
    assert strangers(resources, model) == ([("held-out", 50)], True)


def enrol_people_again(staff: GalleryWriter, model: Model) -> None:
    """Enrol 40 people in "staff" by the first photos, under other ids."""
    rows, subjects = people(40, 3, seed=3)
    staff.add({model.id: rows}, [f"again-{name}" for name in subjects])
    with writing(staff.resources.database) as session:
        for photo, pk in enumerate(session.scalars(select(Face.pk).where(Face.collection_id == "staff"))):
            session.execute(update(Face).where(Face.pk == pk).values(image_id=f"{photo:064}"))


def draw_with_learned(learned: int, others: int, nearness: float = 1.0) -> tuple[Rows, list[str]]:
    """Draw two photos of each person, of whom a model keeps the first, from whom it has learned, farther apart."""
    rows, names = people(learned + others, 2, dim=32)
    rows[: 2 * learned] *= 1.2
    rows[2 * learned :] *= nearness
    return rows, names


def calibrate_pairs(resources: Resources, model: Model) -> Calibration:
    """Measure the pairs of the collection "staff"."""
    measured = gallery_calibration.measure_gallery(resources, "staff", "identity", model)["calibration"]
    return Calibration.from_dict(measured)


@pytest.mark.parametrize("shared", [200, 120])
def test_people_from_whom_a_model_has_not_learned_tell_the_rates_of_pairs(resources: Resources, shared: int) -> None:
    """Those from whom it has learned elsewhere are kept farther apart, and more strangers pass than these say."""
    model = replace(make_model("m-learned", dim=32), provenance=LEARNED)
    rows, names = draw_with_learned(shared, 200)
    staff = GalleryWriter(resources).make(model)
    staff.add({model.id: rows}, names)
    studio = GalleryWriter(resources, "studio").make(model)
    studio.add({}, names[: 2 * shared])
    with writing(resources.database) as session:
        for pk, learned_pk in zip(staff.pks, studio.pks, strict=False):
            session.execute(update(Face).where(Face.pk.in_([pk, learned_pk])).values(image_id=f"{pk:064}"))
    threshold = calibrate_pairs(resources, model).threshold(0.01)
    unlearned = EUCLIDEAN.distances(rows[2 * shared :: 2], rows[2 * shared + 1 :: 2])[np.triu_indices(200, 1)]
    assert 0.005 < (unlearned <= threshold.distance).mean() <= threshold.high


@pytest.mark.parametrize(("newcomers", "nearness"), [(150, 0.8), (35, 1.0), (20, 0.5)])
def test_people_who_came_after_a_training_count_where_more_strangers_pass_than_those_held_out_say(
    resources: Resources, newcomers: int, nearness: float
) -> None:
    """A few of the same kind, or too few, do not make the thresholds stricter."""
    rows, names = draw_with_learned(150, newcomers, nearness)
    strange, learned = people(250, 1, dim=32, seed=7)[0], rows[:300:2]
    genuine = EUCLIDEAN.distances(rows[300::2], rows[301::2]).diagonal().astype(np.float64)
    held_out = Calibration.fit(genuine, EUCLIDEAN.distances(strange, learned).ravel().astype(np.float64))
    trained_here = LEARNED | {"collection": "staff", "changes": {"staff": 1}, "by_held_out": ["identity"]}
    model = replace(make_model("m-learned", dim=32), calibrations={"identity": held_out}, provenance=trained_here)
    gallery = GalleryWriter(resources).make(model)
    with writing(resources.database) as session:
        session.get_one(Collection, "staff").change = 0
    gallery.add({model.id: rows[:300]}, names[:300])
    gallery.add({model.id: rows[300:]}, names[300:])
    with writing(resources.database) as session:
        session.execute(update(Face).where(Face.pk.in_(gallery.pks[:300])).values(created_at=1.0))
    own = calibrate_pairs(resources, replace(model, provenance={}))
    usual = held_out.impostors.join_strictest(own.impostors).threshold(0.01)
    threshold = calibrate_pairs(resources, model).threshold(0.01)
    if newcomers < 150:
        assert threshold == usual
        return
    stranger = (people(500, 1, dim=32, seed=8)[0] * nearness).astype(np.float32)
    distances = EUCLIDEAN.distances(stranger, rows)
    assert 0.005 < (distances <= threshold.distance).mean() <= threshold.high
    assert (distances <= usual.distance).mean() > usual.high
