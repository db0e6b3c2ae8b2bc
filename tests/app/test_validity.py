"""Thresholds that were measured before the gallery changed: who is not named by them, until it is measured again."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select, update

from app.db.session import reading, writing
from app.db.tables import Collection, Deployment, Embedding, Face, Label, Subject, now
from app.errors import Conflict
from app.health.service import list_unready_reasons
from app.resources import Resources
from app.search import service
from app.search.context import open_context
from app.search.decision import OUTDATED, UNCHECKED, RankedMatch, decide, make_person_threshold
from app.search.params import QuerySearchParams
from app.search.schemas import SearchOut
from app.serving import deployment_sync, deployments
from app.serving.calibration import gallery_calibration, schedule, validity
from app.serving.calibration.schedule import CalibrationSchedule, needs_recalibration
from app.serving.calibration.validity_check import Checked
from app.serving.deployments import VALID, Registry, ServedDeployment, Validity
from app.serving.engine import Engine, open_engine
from app.serving.scores import Scores
from ml.calibration import Calibration
from ml.distances import EUCLIDEAN
from ml.identification import searches
from ml.identification.new_hubs import NewHubs
from ml.identification.open_set import VERSION, OpenSetCalibration
from ml.identification.person_distance import DecisionRule
from ml.identification.stranger_searches import StrangerSearches
from ml.model import Model
from ml.types import Rows
from tests.app.test_paused_follower import wait_for
from tests.rows import GalleryWriter, make_model, people

PEOPLE, PHOTOS, DIM = 160, 3, 64
MODEL = make_model("m-64", dim=DIM)
MIDDLE: Rows = np.zeros((1, DIM), np.float32)


@pytest.fixture
def database_url() -> str:
    """No database decides these rules."""
    return ""


@pytest.fixture
def gallery(resources: Resources) -> GalleryWriter:
    rows, names = people(PEOPLE, PHOTOS, dim=DIM, spread=0.5)
    writer = GalleryWriter(resources).make(MODEL)
    writer.add({MODEL.id: rows}, names)
    return writer


@pytest.fixture
def engine(gallery: GalleryWriter) -> Iterator[Engine]:
    with open_engine(gallery.resources) as opened:
        wait_until_measured(opened, PEOPLE * PHOTOS)
        yield opened


def wait_until_measured(engine: Engine, faces: int) -> None:
    def is_measured() -> bool:
        served = engine.registry.all()
        return bool(served) and served[0].scores[MODEL.id].calibrated_at_count == faces

    wait_for(is_measured, 30)


def wait_until_new_faces_are_searched_for(gallery: GalleryWriter, engine: Engine) -> None:
    change = read_change(gallery)
    wait_for(lambda: find_checked(engine).change == change, 20)
    wait_for(lambda: not find_checked(engine).newcomers.is_due, 20)


def read_validity(engine: Engine) -> Validity:
    return engine.registry.all()[0].find_validity(MODEL.id)


def owner_of(gallery: GalleryWriter, pk: int) -> int:
    with reading(gallery.resources.database) as session:
        return 2 * (session.scalar(select(Face.subject_pk).where(Face.pk == pk)) or 0)


@pytest.fixture
def unmeasured(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patches:
        patches.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
        yield


def test_ordinary_people_change_nothing(gallery: GalleryWriter, engine: Engine, unmeasured: None) -> None:
    gallery.add({MODEL.id: people(10, 1, dim=DIM, seed=5, spread=0.5)[0]}, [f"n{i}" for i in range(10)])
    wait_for(lambda: engine.registry.all()[0].champion.state.vectors == PEOPLE * PHOTOS + 10)
    index = engine.registry.all()[0].champion

    def is_checked() -> bool:
        checked = engine.follower.sync.validity_checks._checked.get(("staff", "identity"), {}).get(index.key)
        return checked is not None and checked.change == index.state.change

    wait_for(is_checked)
    assert read_validity(engine) == VALID


def test_a_label_that_names_a_face_in_the_middle_of_all(
    gallery: GalleryWriter, engine: Engine, unmeasured: None
) -> None:
    gallery.add({MODEL.id: MIDDLE.repeat(6, axis=0)}, [None] * 6)
    hubs = [2 * pk + 1 for pk in gallery.pks[-6:]]
    wait_for(lambda: read_validity(engine) == Validity(frozenset(hubs)))
    gallery.label([(gallery.pks[0], pk) for pk in gallery.pks[-6:]], same=True)
    person = owner_of(gallery, gallery.pks[0])
    wait_for(lambda: read_validity(engine) == Validity(frozenset([*hubs, person]), is_due=True))


@pytest.mark.parametrize(("is_poorer", "photos"), [(False, 1), (True, 1), (True, 3)])
def test_new_people_of_a_poorer_camera(
    gallery: GalleryWriter, engine: Engine, monkeypatch: pytest.MonkeyPatch, is_poorer: bool, photos: int
) -> None:
    """They are named for strangers like themselves, and far from the people who were measured."""
    monkeypatch.setattr(searches, "MAX_OWN_FACES", 2)
    rows = people(12, photos, dim=DIM, seed=5, spread=0.5)[0]
    with monkeypatch.context() as patches:
        patches.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
        gallery.add({MODEL.id: 0.4 * rows + 5 if is_poorer else rows}, [f"n{i // photos}" for i in range(len(rows))])
        wait_until_new_faces_are_searched_for(gallery, engine)
        assert read_validity(engine) == Validity(is_due=is_poorer)
    if is_poorer:
        wait_until_measured(engine, len(gallery.pks))
        wait_for(lambda: read_validity(engine) == VALID, 10)


@pytest.mark.parametrize("is_poorer", [True, False], ids=["poorer", "the same"])
def test_new_photos_of_a_poorer_camera_of_people_who_were_measured(
    gallery: GalleryWriter, engine: Engine, monkeypatch: pytest.MonkeyPatch, is_poorer: bool
) -> None:
    """Strangers of that camera are named as them, and they are a part of strangers like all who are enrolled."""
    poorer, names = people(14, PHOTOS, dim=DIM, seed=5, spread=0.5)
    usual = people(PEOPLE, PHOTOS, dim=DIM, spread=0.5)[0][: len(poorer)] + np.float32(0.05)
    with monkeypatch.context() as patches:
        patches.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
        gallery.add({MODEL.id: 0.4 * poorer + 1.5 if is_poorer else usual}, names)
        wait_until_new_faces_are_searched_for(gallery, engine)
        assert read_validity(engine) == Validity(is_due=is_poorer)
    if is_poorer:
        wait_until_measured(engine, len(gallery.pks))
        wait_for(lambda: read_validity(engine) == VALID, 10)


@pytest.mark.parametrize("meanwhile", ["others are added and deleted", "photos are imported", "vectors are imported"])
def test_a_measurement_of_a_poorer_camera_does_not_wait(
    gallery: GalleryWriter, engine: Engine, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """Strangers are named too often until then."""
    rows, end = people(40, 2, dim=DIM, seed=5, spread=0.5)[0], threading.Event()
    if "imported" in meanwhile:
        monkeypatch.setattr(schedule, f"is_importing{'_vectors' * ('vectors' in meanwhile)}", lambda *_: True)
    calibrated_at = engine.registry.all()[0].scores[MODEL.id].calibrated_at_change

    def write() -> None:
        for turn in range(1_000):
            if end.wait(0.2):
                return
            gallery.add({MODEL.id: rows[-1 - turn % 56 :][:1]}, ["p000"])
            gallery.remove(gallery.pks[-1:])

    writer = threading.Thread(target=write)
    try:
        gallery.add({MODEL.id: 0.4 * rows[:24] + 5}, [f"n{i // 2}" for i in range(24)])
        if "deleted" in meanwhile:
            writer.start()
        wait_for(lambda: engine.registry.all()[0].scores[MODEL.id].calibrated_at_change != calibrated_at, 20)
        wait_for(lambda: not read_validity(engine).is_due, 10)
    finally:
        end.set()
        if writer.ident:
            writer.join()


def test_a_measurement_that_is_due_is_made_once(
    gallery: GalleryWriter, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last check is of the one before, until the next has ended."""
    check, renew, started = validity.check, schedule.renew_calibration, list[float]()

    def check_slowly(*args: Any) -> Checked:
        if started:
            time.sleep(1)
        return check(*args)

    def measure_gallery(*args: Any) -> bool:
        started.append(time.monotonic())
        return renew(*args)

    monkeypatch.setattr(validity, "check", check_slowly)
    monkeypatch.setattr(schedule, "renew_calibration", measure_gallery)
    gallery.add({MODEL.id: MIDDLE}, ["first"])
    wait_until_measured(engine, len(gallery.pks))
    wait_for(lambda: read_validity(engine) == VALID, 20)
    time.sleep(2)
    assert len(started) == 1


def test_measurements_that_do_not_wait_rest(
    gallery: GalleryWriter, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else people for whom strangers are taken, and come one after the other, would keep a core busy."""
    monkeypatch.setattr(schedule, "is_importing", lambda *_: True)
    monkeypatch.setattr(schedule, "REST_RATIO", 1e6)
    gallery.add({MODEL.id: MIDDLE}, ["first"])
    wait_until_measured(engine, len(gallery.pks))
    gallery.add({MODEL.id: 0.4 * people(20, 1, dim=DIM, seed=5, spread=0.5)[0] + 5}, [f"n{i}" for i in range(20)])
    wait_for(lambda: read_validity(engine).is_due, 20)
    time.sleep(1)
    assert engine.registry.all()[0].scores[MODEL.id].calibrated_at_count == len(gallery.pks) - 20


@pytest.mark.parametrize("how", ["named", "allowed", "labelled"])
def test_people_of_a_poorer_camera_who_are_named_or_allowed_later(
    gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Their faces were in the gallery when it was measured, and nobody was searched for as them."""
    rows = (0.4 * people(12, 2, dim=DIM, seed=5, spread=0.5)[0] + 5).astype(np.float32)
    names = [f"n{i // 2:02}" for i in range(len(rows))]
    gallery.add({MODEL.id: rows}, names if how == "allowed" else [None] * len(rows))
    later = gallery.pks[-len(rows) :]
    with writing(gallery.resources.database) as session:
        session.execute(update(Subject).where(Subject.id.like("n%")).values(consent=False))
    with open_engine(gallery.resources) as engine:
        wait_until_measured(engine, len(gallery.pks))
        wait_for(lambda: read_validity(engine) == VALID)
        with monkeypatch.context() as patches:
            patches.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
            if how == "allowed":
                with writing(gallery.resources.database) as session:
                    session.execute(update(Subject).where(Subject.id.like("n%")).values(consent=True))
                change_faces(gallery, later)
            else:
                name_faces(
                    gallery, later[::2] if how == "labelled" else later, names[::2] if how == "labelled" else names
                )
            if how == "labelled":
                gallery.label(list(zip(later[::2], later[1::2], strict=True)), same=True)
            wait_for(lambda: find_checked(engine).newcomers.exceeds_rates and read_validity(engine).is_due, 30)
            assert not read_validity(engine).is_outdated
        wait_for(lambda: read_validity(engine) == VALID, 30)


def name_faces(gallery: GalleryWriter, pks: Sequence[int], names: Sequence[str]) -> None:
    """Give faces to new people."""
    with writing(gallery.resources.database) as session:
        people = {name: Subject(collection_id=gallery.collection, id=name, external_id=f"x-{name}") for name in names}
        session.add_all(people.values())
        session.flush()
        subjects = {name: person.pk for name, person in people.items()}
    for pk, name in zip(pks, names, strict=True):
        change_faces(gallery, [pk], subject_pk=subjects[name], role="gallery")


@pytest.mark.parametrize("how", ["enrolled", "labelled"])
def test_a_person_who_gets_the_faces_of_many(
    gallery: GalleryWriter, engine: Engine, unmeasured: None, how: str
) -> None:
    rows = people(40, 1, dim=DIM, seed=5, spread=0.5)[0]
    gallery.add({MODEL.id: rows}, ["p000" if how == "enrolled" else None] * len(rows))
    person = owner_of(gallery, gallery.pks[0])
    if how == "labelled":
        assert read_validity(engine) == VALID
        gallery.label([(gallery.pks[0], pk) for pk in gallery.pks[-len(rows) :]], same=True)
        wait_for(lambda: len(read_validity(engine).hubs) == 1 + len(rows), 20)
        assert read_validity(engine).hubs == {person, *(2 * pk + 1 for pk in gallery.pks[-len(rows) :])}
    wait_for(lambda: person in read_validity(engine).hubs and read_validity(engine).is_due, 20)


@pytest.mark.parametrize("how", ["deleted", "unnamed", "moved", "distractor", "unlabelled", "measured and unlabelled"])
def test_who_loses_the_face_that_kept_them_from_the_middle(
    gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    rows, is_labelled = np.concatenate([MIDDLE, MIDDLE + 6]), "unlabelled" in how
    if how == "measured and unlabelled":
        add_labelled(gallery, rows)
    with open_engine(gallery.resources) as engine:
        wait_until_measured(engine, len(gallery.pks))
        monkeypatch.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
        if how == "unlabelled":
            add_labelled(gallery, rows)
        elif not is_labelled:
            gallery.add({MODEL.id: rows}, ["x", "x"])
        person, last = owner_of(gallery, gallery.pks[-2]), gallery.pks[-1]
        wait_until_searched(engine, read_change(gallery))
        assert person not in read_validity(engine).hubs
        if how == "deleted":
            gallery.remove([last])
        elif is_labelled:
            withdraw_labels(gallery)
        elif how == "distractor":
            change_faces(gallery, [last], role="distractor")
        else:
            change_faces(
                gallery, [last], subject_pk=None if how == "unnamed" else owner_of(gallery, gallery.pks[0]) // 2
            )
        wait_for(lambda: person in read_validity(engine).hubs, 20)


def add_labelled(gallery: GalleryWriter, rows: Rows) -> None:
    """Enrol one face of a person, and faces that labels say are the same."""
    gallery.add({MODEL.id: rows}, ["x", *[None] * (len(rows) - 1)])
    gallery.label([(gallery.pks[-len(rows)], pk) for pk in gallery.pks[1 - len(rows) :]], same=True)


def withdraw_labels(gallery: GalleryWriter) -> None:
    with writing(gallery.resources.database) as session:
        gallery._raised(session)
        session.execute(update(Label).values(withdrawn_at=now()))
        session.get_one(Collection, gallery.collection).have_labels_reread()
    gallery.resources.notifier.notify("changes")


def test_people_of_a_poorer_camera_whom_labels_do_not_join_any_more(
    gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were one person when the gallery was measured, who stood for no stranger."""
    rows = (0.4 * people(20, 1, dim=DIM, seed=5, spread=0.5)[0] + 5).astype(np.float32)
    gallery.add({MODEL.id: rows}, [f"n{i}" for i in range(20)])
    gallery.label([(gallery.pks[-20], pk) for pk in gallery.pks[-19:]], same=True)
    with open_engine(gallery.resources) as engine:
        wait_until_measured(engine, len(gallery.pks))
        wait_until_searched(engine, 0)
        assert read_validity(engine) == VALID
        with monkeypatch.context() as patches:
            patches.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
            withdraw_labels(gallery)
            wait_for(lambda: read_validity(engine).is_due, 20)
        wait_for(lambda: read_validity(engine) == VALID, 30)


@pytest.mark.parametrize("are_known", [True, False], ids=["known", "of an earlier version"])
def test_labels_that_were_changed_while_the_index_was_not_loaded(
    gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch, are_known: bool
) -> None:
    """As many name faces as before, but others."""
    gallery.add({MODEL.id: MIDDLE.repeat(3, axis=0)}, [None] * 3)
    own = gallery.pks[: 3 * PHOTOS : PHOTOS]
    gallery.add({MODEL.id: people(PEOPLE, PHOTOS, dim=DIM, spread=0.5)[0][: 3 * PHOTOS : PHOTOS]}, [None] * 3)
    gallery.label(list(zip(own, gallery.pks[-3:], strict=True)), same=True)
    measure(gallery, MODEL.id)
    monkeypatch.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
    if not are_known:
        with writing(gallery.resources.database) as session:
            row = session.get_one(Deployment, ("staff", "identity"))
            measured = {name: value for name, value in row.measurements[MODEL.id].items() if name != "labels_hash"}
            row.measurements = {MODEL.id: measured}
    withdraw_labels(gallery)
    gallery.label([(own[0], pk) for pk in gallery.pks[-6:-3]], same=True)
    with open_engine(gallery.resources) as engine:
        wait_until_searched(engine, read_change(gallery))
        assert owner_of(gallery, own[0]) in read_validity(engine).hubs


@pytest.mark.parametrize("how", ["deleted", "changed and deleted", "refused", "expired", "labelled"])
def test_who_has_lost_the_next_person(
    gallery: GalleryWriter, engine: Engine, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    gallery.add({MODEL.id: np.concatenate([MIDDLE, MIDDLE + np.float32(0.01)])}, ["first", "second"])
    wait_until_measured(engine, PEOPLE * PHOTOS + 2)
    wait_for(lambda: read_validity(engine) == VALID)
    first, left = (owner_of(gallery, pk) for pk in gallery.pks[-2:])
    with monkeypatch.context() as patches:
        patches.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
        if how == "changed and deleted":
            wait_until_searched(engine, change_subject(gallery, "first"))
        if "deleted" in how:
            gallery.remove(gallery.pks[-2:-1])
        elif how == "labelled":
            gallery.label([tuple(gallery.pks[-2:])], same=True)
        else:
            change_subject(
                gallery, "first", **({"consent": False} if how == "refused" else {"retain_until": now() + 1})
            )
        hubs = frozenset([first, left] if how == "labelled" else [left])
        wait_for(lambda: read_validity(engine) == Validity(hubs, is_due=True), 30)
    wait_for(lambda: read_validity(engine) == VALID, 30)


def test_who_has_lost_the_next_person_and_has_faces_by_labels(
    gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_labelled(gallery, np.concatenate([MIDDLE + 6, MIDDLE.repeat(40, axis=0)]))
    person = owner_of(gallery, gallery.pks[-41])
    gallery.add({MODEL.id: np.concatenate([MIDDLE + 6, MIDDLE.repeat(40, axis=0)])}, ["beside"] * 41)
    with open_engine(gallery.resources) as engine:
        wait_until_measured(engine, len(gallery.pks))
        monkeypatch.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
        wait_until_searched(engine, read_change(gallery))
        assert person not in read_validity(engine).hubs
        gallery.remove(gallery.pks[-41:])
        wait_for(lambda: person in read_validity(engine).hubs, 20)


def test_a_label_that_joins_a_distractor_to_the_person_beside(
    gallery: GalleryWriter, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.add({MODEL.id: MIDDLE}, ["somebody"])
    gallery.add({MODEL.id: MIDDLE + np.float32(0.01)}, [None], role="distractor")
    wait_until_measured(engine, PEOPLE * PHOTOS + 2)
    wait_for(lambda: read_validity(engine) == VALID)
    with monkeypatch.context() as patches:
        patches.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
        gallery.label([tuple(gallery.pks[-2:])], same=True)
        hubs = frozenset([owner_of(gallery, gallery.pks[-2]), 2 * gallery.pks[-1] + 1])
        wait_for(lambda: read_validity(engine) == Validity(hubs, is_due=True), 30)
    wait_for(lambda: read_validity(engine) == VALID, 30)


@pytest.mark.parametrize("group_by", ["subject", "face"])
def test_photos_near_a_distractor_that_a_label_joins_to_a_person_are_the_person_s(
    gallery: GalleryWriter, engine: Engine, group_by: str
) -> None:
    rows = people(PEOPLE, PHOTOS, dim=DIM, spread=0.5)[0]
    photo = rows[:1] + np.float32(0.3)
    gallery.add({MODEL.id: photo}, [None], role="distractor")
    change = read_change(gallery)
    wait_for(lambda: find_checked(engine).change == change, 20)
    assert decide_search(search(engine, photo[0] + np.float32(0.05), group_by=group_by))[0] == "unknown"
    gallery.label([(gallery.pks[0], gallery.pks[-1])], same=True)
    change = read_change(gallery)
    wait_for(lambda: find_checked(engine).change == change, 20)
    answer = search(engine, photo[0] + np.float32(0.05), group_by=group_by)
    assert decide_search(answer)[0] == "match"
    [face] = answer["faces"]
    assert face["subject"]
    assert face["subject"]["id"] == "p000"
    assert (face["matches"][0]["role"], face["matches"][0]["passes"]) == ("distractor", True)


def test_people_with_two_names_do_not_outdate_a_threshold_that_was_measured_with_them(resources: Resources) -> None:
    """They are nearer to each other than the tail is fitted to, from which the smallest rates come."""
    rows, names = people(4 * PEOPLE, 2, dim=DIM, spread=0.5)
    rows[1:6:2], names[1:6:2] = rows[0:6:2] + np.float32(0.05), [f"{name}-again" for name in names[1:6:2]]
    gallery = GalleryWriter(resources).make(MODEL)
    gallery.add({MODEL.id: rows}, names)
    with open_engine(resources) as engine:
        wait_until_measured(engine, len(gallery.pks))
        wait_for(lambda: read_validity(engine) == VALID)
        gallery.remove(gallery.pks[-1:])
        wait_until_searched(engine, read_change(gallery))
        assert not read_validity(engine).is_outdated


@pytest.mark.parametrize("how", ["deleted", "no distractors"])
def test_many_people_who_have_lost_the_next_person(
    resources: Resources, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Each of them is named for a few strangers, and all of them for too many."""
    rows, names = people(2 * PEOPLE, PHOTOS, dim=DIM, spread=0.5)
    gallery = GalleryWriter(resources).make(MODEL)
    gallery.add({MODEL.id: rows}, names)
    near_all = (0.6 * np.random.default_rng(1).standard_normal((10, DIM))).astype(np.float32)
    gallery.add({MODEL.id: near_all}, [None] * 10, role="distractor")
    with open_engine(resources) as engine:
        wait_until_measured(engine, len(gallery.pks))
        wait_for(lambda: read_validity(engine) == VALID)
        with monkeypatch.context() as patches:
            patches.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
            if how == "deleted":
                gallery.remove(gallery.pks[-10:])
            else:
                change_faces(gallery, gallery.pks[-10:], role="gallery")
            wait_for(lambda: read_validity(engine).is_outdated, 30)
            assert read_validity(engine).is_due
        wait_for(lambda: not read_validity(engine).is_outdated and not read_validity(engine).is_due, 30)


def test_a_check_of_many_faces_does_not_have_the_next_one_wait(
    gallery: GalleryWriter, engine: Engine, monkeypatch: pytest.MonkeyPatch, unmeasured: None
) -> None:
    find_checked(engine)
    add = NewHubs.add

    def add_slowly(*args: Any) -> NewHubs:
        time.sleep(0.5)
        return add(*args)

    monkeypatch.setattr(NewHubs, "add", add_slowly)
    gallery.add({MODEL.id: people(1, 1, dim=DIM, seed=5)[0]}, ["new"])
    index = engine.registry.all()[0].champion
    wait_for(lambda: index.state.vectors == PEOPLE * PHOTOS + 1)
    wait_for(lambda: find_checked(engine).change == index.state.change)
    assert find_checked(engine).next_at < time.monotonic() + 5


def find_checked(engine: Engine) -> Checked:
    """Return what is known of the champion, once it has been checked."""
    checked = engine.follower.sync.validity_checks._checked
    wait_for(lambda: any(checked.get(("staff", "identity"), {}).values()))
    [one] = [one for one in checked["staff", "identity"].values() if one is not None]
    return one


def wait_until_searched(engine: Engine, change: int) -> None:
    wait_for(lambda: find_checked(engine).change >= change and not find_checked(engine).is_search_due, 20)


def change_all_faces(gallery: GalleryWriter) -> int:
    """Change what is known of all faces beside who they are. Returns the change."""
    return change_faces(gallery, gallery.pks, attributes={"site": "north"})


def change_faces(gallery: GalleryWriter, pks: Sequence[int], **values: Any) -> int:
    """Change what is known of these faces. Returns the change."""
    with writing(gallery.resources.database) as session:
        change = gallery._raised(session)
        session.execute(update(Face).where(Face.pk.in_(pks)).values(change=change, **values))
        session.get_one(Collection, gallery.collection).have_labels_reread()
    gallery.resources.notifier.notify("changes")
    return change


def change_subject(gallery: GalleryWriter, subject: str, **values: Any) -> int:
    """Change what is known of a person, and so their faces. Returns the change."""
    with writing(gallery.resources.database) as session:
        change = gallery._raised(session)
        row = session.scalars(select(Subject).where(Subject.id == subject)).one()
        for name, value in values.items():
            setattr(row, name, value)
        session.execute(update(Face).where(Face.subject_pk == row.pk).values(change=change))
    gallery.resources.notifier.notify("changes")
    return int(change)


@pytest.mark.parametrize("has_refused", [False, True])
def test_a_gallery_that_is_replaced(
    gallery: GalleryWriter, engine: Engine, monkeypatch: pytest.MonkeyPatch, has_refused: bool
) -> None:
    with monkeypatch.context() as patches:
        patches.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
        if has_refused:
            for number in range(PEOPLE * 3 // 4):
                change_subject(gallery, f"p{number:03}", consent=False)
        else:
            gallery.remove(gallery.pks[: PEOPLE * PHOTOS * 3 // 4])
        rows, names = people(PEOPLE, 1, dim=DIM, seed=5, spread=0.5)
        gallery.add({MODEL.id: rows}, [f"n{name}" for name in names])
        wait_for(lambda: read_validity(engine).is_outdated, 10)
        assert read_validity(engine).is_due
    wait_until_measured(engine, len(gallery.pks))
    wait_for(lambda: read_validity(engine) == VALID, 10)


@pytest.mark.parametrize(("left", "more"), [(20, 0), (10, 40)], ids=["shrunk", "replaced"])
def test_a_gallery_of_less_than_100_faces_does_not_keep_the_threshold_of_a_larger_one(
    gallery: GalleryWriter, engine: Engine, monkeypatch: pytest.MonkeyPatch, left: int, more: int
) -> None:
    with monkeypatch.context() as patches:
        patches.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
        gallery.remove(gallery.pks[left * PHOTOS :])
        rows, names = people(more, 1, dim=DIM, seed=5, spread=0.5)
        if more:
            gallery.add({MODEL.id: rows}, [f"n{name}" for name in names])
        change = read_change(gallery)
        wait_for(lambda: find_checked(engine).change == change, 20)
        assert read_validity(engine).is_outdated == read_validity(engine).is_due == bool(more)
    wait_until_measured(engine, len(gallery.pks))
    wait_for(lambda: read_validity(engine) == VALID, 10)
    measured = engine.registry.all()[0].scores[MODEL.id].open_set
    assert measured is not None
    assert [searches.gallery_faces for searches in measured.strangers] == [len(gallery.pks)]


@pytest.mark.parametrize("left", [30, 0])
@pytest.mark.parametrize("by", ["an earlier version", "another compensation"])
def test_a_small_gallery_is_measured_anew_once_its_measurement_is_superseded(
    resources: Resources, by: str, left: int
) -> None:
    gallery, (rows, names) = GalleryWriter(resources).make(MODEL), people(30, PHOTOS, dim=DIM, spread=0.5)
    gallery.add({MODEL.id: rows}, names)
    measure(gallery, MODEL.id)
    old = read_measurement(resources)
    if by == "an earlier version":
        old["open_set"]["calibration"]["version"] = VERSION - 1
    else:
        old["compensation"] = 3
    with writing(resources.database) as session:
        session.get_one(Deployment, ("staff", "identity")).measurements = {MODEL.id: old}
    gallery.remove(gallery.pks[left * PHOTOS :])
    with open_engine(resources) as engine:
        wait_for(lambda: read_measurement(resources) != old, 20)
        wait_until_measured(engine, left * PHOTOS)
    new = read_measurement(resources)
    assert (new["faces"], new["compensation"]) == (left * PHOTOS, 0)
    assert new["open_set"]["calibration"]["version"] == VERSION


def read_measurement(resources: Resources) -> dict[str, Any]:
    with reading(resources.database) as session:
        return deepcopy(session.get_one(Deployment, ("staff", "identity")).measurements[MODEL.id])


def test_when_a_small_gallery_is_measured_again() -> None:
    assert not needs_recalibration(99, 0, is_idle=True, changed_share=1.0), "one that never was"
    assert needs_recalibration(98, 188, is_idle=True)
    assert not needs_recalibration(98, 188, is_idle=False)
    assert not needs_recalibration(20, 10, is_idle=True), "no more than one of 100 faces"
    assert needs_recalibration(21, 10, is_idle=True)
    assert needs_recalibration(10, 10, is_idle=True, changed_share=0.2)
    assert needs_recalibration(100, 0, is_idle=False)


def read_change(gallery: GalleryWriter) -> int:
    with reading(gallery.resources.database) as session:
        return session.get_one(Collection, gallery.collection).change


def test_a_gallery_whose_faces_are_changed_is_not_replaced(
    gallery: GalleryWriter, engine: Engine, unmeasured: None
) -> None:
    change = change_all_faces(gallery)
    checked = engine.follower.sync.validity_checks._checked
    wait_for(lambda: any(one is not None and one.change == change for one in checked["staff", "identity"].values()))
    assert not read_validity(engine).is_outdated


def test_a_rate_that_searches_do_not_support_is_not_called_uncalibrated() -> None:
    """People with one face each have no pairs of one person, so that nothing else is measured."""
    searches = StrangerSearches.from_distances("leave-one-out", np.linspace(1, 2, 300), np.arange(300), 300)
    scores = Scores(EUCLIDEAN, open_set=OpenSetCalibration(DecisionRule(), (searches,)))
    assert make_person_threshold(scores, 0.1, 300).description is not None
    with pytest.raises(Conflict, match=r"an fpir as small as 1e-05.*Ask for a larger fpir"):
        make_person_threshold(scores, 1e-5, 300)
    with pytest.raises(Conflict, match="not calibrated yet"):
        make_person_threshold(Scores(EUCLIDEAN), 0.1, 300)


def test_a_threshold_that_few_people_confirm_says_how_many_strangers_may_be_named() -> None:
    draw = np.random.default_rng(0)
    searches = [
        StrangerSearches.from_distances(source, draw.normal(size=count), np.arange(count), 2000)
        for source, count in (("leave-one-out", 10), ("distractors", 1500))
    ]
    scores = Scores(EUCLIDEAN, open_set=OpenSetCalibration(DecisionRule(), tuple(searches)))
    description = make_person_threshold(scores, 0.01, 2000).description
    assert description is not None
    assert (description["enough"], description["evidence"]["source"]) == (False, "distractors")
    assert description["evidence"]["more_people"] == 140
    assert description["high"] > 0.1
    assert f"up to {description['high']:.0%} of strangers" in description["note"]
    assert "140 more enrolled people" in description["note"]


def test_who_passes_a_threshold_of_a_gallery_that_is_gone() -> None:
    scores = Scores(EUCLIDEAN, Calibration.fit(np.linspace(1, 4, 300), np.linspace(4, 9, 50_000)))
    threshold = make_person_threshold(scores, None, 100, OUTDATED)
    assert threshold.description is not None
    assert (threshold.description["enough"], threshold.description["note"]) == (False, OUTDATED)
    assert json.loads(json.dumps(threshold.description, allow_nan=False))["nameless_distance"] is None
    for is_named in (True, False):
        assert threshold.accepts(0.0, 100.0, -50.0, is_named) is False
    nearest = RankedMatch(2, [0], 0.0, 1.0, -50.0, False, True, False)
    assert decide(threshold, [nearest]) == ("unknown", None)


@pytest.mark.parametrize("change", ["replaced", "ordinary newcomers", "newcomers of a poorer camera"])
def test_a_previous_model_is_measured_again_too(resources: Resources, change: str) -> None:
    other = make_model("m-previous", dim=DIM)
    rows, names = people(PEOPLE, PHOTOS, dim=DIM, spread=0.5)
    gallery = GalleryWriter(resources).make(MODEL, previous=other)
    gallery.add({MODEL.id: rows, other.id: rows}, names)
    old = gallery_calibration.measure_gallery(resources, "staff", "identity", other)
    with writing(resources.database) as session:
        session.get_one(Deployment, ("staff", "identity")).measurements = {other.id: old}
    if change == "replaced":
        gallery.remove(gallery.pks)
    later = people(PEOPLE if change == "replaced" else 12 if "poorer" in change else 60, 1, dim=DIM, seed=5)[0]
    later = 0.4 * later + 5 if "poorer" in change else later
    gallery.add({MODEL.id: later, other.id: later}, [f"n{i}" for i in range(len(later))])
    with open_engine(resources) as engine:

        def is_measured(model_id: str) -> bool:
            served = engine.registry.all()
            scores = served[0].scores.get(model_id) if served else None
            return scores is not None and scores.calibrated_at_count == len(gallery.pks)

        wait_for(lambda: is_measured(MODEL.id) and is_measured(other.id), 30)


@pytest.mark.parametrize("how", ["raises", "returns"])
def test_a_measurement_that_fails_is_made_again(
    gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Nothing changes until then by which it would be due again."""
    failures = list[str]()

    def fail_once(*args: Any) -> bool:
        if failures:
            return gallery_calibration.renew_calibration(*args)
        failures.append(how)
        if how == "raises":
            raise OSError("the disk failed once")
        return False

    monkeypatch.setattr(schedule, "renew_calibration", fail_once)
    with open_engine(gallery.resources) as engine:
        wait_until_measured(engine, len(gallery.pks))
    assert failures == [how]


def make_learned_gallery(
    resources: Resources, how: str = "here", poor_photos: Rows | None = None
) -> tuple[GalleryWriter, Model]:
    """Make a gallery whose model was trained on its first faces, here or in the collection of which it is a copy.

    poor_photos: one of each person, in the place of the last one
    """
    rows, names = people(PEOPLE, PHOTOS, dim=DIM, spread=0.5)
    if poor_photos is not None:
        rows[PHOTOS - 1 :: PHOTOS] = poor_photos
    own = GalleryWriter(resources).make(MODEL)
    own.add({MODEL.id: rows}, names)
    kept = gallery_calibration.measure_gallery(resources, "staff", "identity", MODEL)["open_set"]["calibration"]
    kept |= {"strangers": [searches | {"source": "held-out"} for searches in kept["strangers"]]}
    home = "staff" if how == "here" else "old"
    learned = {"training": "t", "collection": home, "changes": {home: 1}, "open_set": {"identity": kept}}
    model = replace(make_model("m-learned", dim=DIM), provenance=learned)
    if how == "same photos":
        GalleryWriter(resources, home).make(MODEL).add({MODEL.id: rows}, names)
    with writing(resources.database) as session:
        if how == "restored":
            session.get_one(Collection, "staff").copied_from = [home]
        elif how == "same photos":
            for face in session.scalars(select(Face)):
                face.image_id = f"photo-{(face.pk - 1) % len(rows)}"
        resources.models.keep(session, model)
        session.execute(update(Embedding).values(model_id=model.id))
    own.point(champion=model.id)
    return own, model


@pytest.mark.parametrize("left", [1, 0])
def test_who_loses_wrong_faces_is_named_again_by_a_model_that_was_trained_here(
    resources: Resources, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    own, model = make_learned_gallery(resources)
    with open_engine(resources) as engine:

        def read_hubs() -> frozenset[int]:
            return engine.registry.all()[0].find_validity(model.id).hubs

        wait_for(lambda: bool(engine.registry.all()), 30)
        wait_for(lambda: engine.registry.all()[0].scores[model.id].calibrated_at_count == PEOPLE * PHOTOS, 30)
        monkeypatch.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
        rows = people(1, 1, dim=DIM, seed=5)[0]
        own.add({model.id: np.concatenate([rows, MIDDLE.repeat(30, axis=0)])}, ["x"] * 31)
        hub = owner_of(own, own.pks[-1])
        wait_for(lambda: read_hubs() == {hub}, 20)
        own.remove(own.pks[-31 + left :])
        wait_for(lambda: read_hubs() == frozenset(), 20)


def test_people_who_lost_their_good_photos_are_noticed_though_the_model_has_learned_from_them(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    poor, _ = people(PEOPLE, 1, dim=DIM, seed=6)
    own, model = make_learned_gallery(resources, poor_photos=0.2 * poor + 1)
    with open_engine(resources) as engine:

        def read_state() -> tuple[bool, float]:
            served = engine.registry.all()[0]
            open_set = served.scores[model.id].open_set
            threshold = open_set and open_set.threshold(0.05, len(own.pks))
            return served.find_validity(model.id).is_outdated, threshold.person_distance if threshold else np.inf

        wait_for(lambda: bool(engine.registry.all()), 30)
        wait_for(lambda: read_state()[1] < np.inf and engine.registry.all()[0].find_validity(model.id) == VALID, 30)
        _, before = read_state()
        with monkeypatch.context() as patches:
            patches.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
            own.remove(
                [pk for number, pk in enumerate(own.pks[: PHOTOS * PEOPLE // 8]) if number % PHOTOS < PHOTOS - 1]
            )
            wait_for(lambda: read_state()[0], 30)
        wait_for(lambda: not read_state()[0], 30)
        assert read_state()[1] < 0.9 * before


@pytest.mark.parametrize("how", ["here", "restored", "same photos"])
def test_a_hub_of_a_model_that_was_trained_here_stays_one(resources: Resources, how: str) -> None:
    """Or in the collection of which this one is a copy, by a restore or by its photos."""
    own, model = make_learned_gallery(resources, how)
    with open_engine(resources) as engine:

        def read_hubs() -> tuple[int, frozenset[int]]:
            served = engine.registry.get(("staff", "identity"))
            assert served is not None
            return served.scores[model.id].calibrated_at_count, served.find_validity(model.id).hubs

        count = PEOPLE * PHOTOS
        wait_for(lambda: engine.registry.get(("staff", "identity")) is not None, 30)
        wait_for(lambda: read_hubs()[0] == count, 30)
        own.add({model.id: MIDDLE}, ["hub"])
        hub = owner_of(own, own.pks[-1])
        wait_for(lambda: read_hubs() == (count, frozenset([hub])))
        later, names = people(50, 1, dim=DIM, seed=5, spread=0.5)
        own.add({model.id: later}, [f"n{name}" for name in names])
        wait_for(lambda: read_hubs()[0] == count + 51, 30)
        wait_for(lambda: read_hubs() == (count + 51, frozenset([hub])))
        change = change_all_faces(own)
        wait_until_searched(engine, change)
        assert read_hubs()[1] == {hub}


def search(engine: Engine, row: Rows, **params: Any) -> SearchOut:
    with open_context(engine) as context:
        return service.search_by_vector(context, "staff", row.tolist(), QuerySearchParams(**params))


def decide_search(answer: SearchOut) -> tuple[str | None, str | None]:
    """Return the decision, and what the answer notes of its threshold."""
    assert answer["threshold"] is not None
    return answer["faces"][0]["decision"], answer["threshold"]["note"]


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Checks wait for this event."""
    check, may_go_on = validity.check, threading.Event()

    def check_later(*args: Any) -> Checked:
        may_go_on.wait(60)
        return check(*args)

    monkeypatch.setattr(validity, "check", check_later)
    yield may_go_on
    may_go_on.set()


def measure(gallery: GalleryWriter, *model_ids: str) -> None:
    """Measure these models, and store it."""
    with reading(gallery.resources.database) as session:
        models = [gallery.resources.models.get(model_id) for model_id in model_ids]
        session.rollback()
    measured = {
        model.id: gallery_calibration.measure_gallery(gallery.resources, "staff", "identity", model) for model in models
    }
    with writing(gallery.resources.database) as session:
        session.get_one(Deployment, ("staff", "identity")).measurements = measured


def test_a_challenger_that_is_loaded_on_demand_names_nobody_of_a_gallery_that_was_replaced(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_model("m-challenger", dim=DIM)
    rows, names = people(PEOPLE, PHOTOS, dim=DIM, spread=0.5)
    gallery = GalleryWriter(resources).make(MODEL, challenger=other)
    gallery.add({MODEL.id: rows, other.id: rows}, names)
    measure(gallery, MODEL.id, other.id)
    monkeypatch.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
    with open_engine(resources) as engine:
        find_checked(engine)
        gallery.remove(gallery.pks)
        later, names = people(PEOPLE, PHOTOS, dim=DIM, seed=5, spread=0.5)
        later = 0.4 * later + 5
        gallery.add({MODEL.id: later, other.id: later}, names)
        wait_for(lambda: engine.registry.all()[0].champion.state.vectors == len(later))
        assert other.id not in engine.registry.all()[0].indexes
        stranger = 0.4 * people(1, 1, dim=DIM, seed=6)[0][0] + 5
        assert decide_search(search(engine, stranger, model="challenger")) == ("unknown", OUTDATED)


def test_nobody_is_named_after_a_start_until_the_threshold_is_checked(
    gallery: GalleryWriter, blocked: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
    measure(gallery, MODEL.id)
    gallery.add({MODEL.id: MIDDLE}, ["hub"])
    own, stranger = people(PEOPLE, PHOTOS, dim=DIM, spread=0.5)[0][0], people(1, 1, dim=DIM, seed=6)[0][0]
    with open_engine(gallery.resources) as engine:
        wait_for(lambda: bool(engine.registry.all()))
        assert decide_search(search(engine, stranger)) == ("unknown", UNCHECKED)
        assert any("being checked" in reason for reason in list_unready_reasons(engine))
        blocked.set()
        find_checked(engine)
        wait_for(lambda: not any("being checked" in reason for reason in list_unready_reasons(engine)))
        decision, note = decide_search(search(engine, stranger))
        assert (decision != "match", note) == (True, None)
        assert decide_search(search(engine, own)) == ("match", None)


def test_a_check_that_does_not_end_keeps_nobody_from_being_named_for_ever(
    gallery: GalleryWriter,
    blocked: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    measure(gallery, MODEL.id)
    gallery.add({MODEL.id: people(1, 1, dim=DIM, seed=5)[0]}, ["new"])
    own = people(PEOPLE, PHOTOS, dim=DIM, spread=0.5)[0][0]
    with open_engine(gallery.resources) as engine:
        wait_for(lambda: bool(engine.registry.all()))
        assert decide_search(search(engine, own)) == ("unknown", UNCHECKED)
        monkeypatch.setattr(deployments, "MAX_UNCHECKED_SECONDS", 0.0)
        assert decide_search(search(engine, own)) == ("match", None)
        assert not any("being checked" in reason for reason in list_unready_reasons(engine))
        wait_for(lambda: "gallery.not_checked" in caplog.text)


def test_a_gallery_that_is_as_it_was_measured_waits_for_no_check(
    gallery: GalleryWriter, blocked: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even for a moment: the first answers are those of before the restart."""
    put, was_unchecked = Registry.put, list[bool]()

    def put_and_note(registry: Registry, served: ServedDeployment) -> None:
        was_unchecked.append(served.find_validity(MODEL.id).is_unchecked)
        put(registry, served)

    monkeypatch.setattr(Registry, "put", put_and_note)
    measure(gallery, MODEL.id)
    own = people(PEOPLE, PHOTOS, dim=DIM, spread=0.5)[0][0]
    with open_engine(gallery.resources) as engine:
        wait_for(lambda: bool(engine.registry.all()))
        assert was_unchecked
        assert not any(was_unchecked)
        assert decide_search(search(engine, own)) == ("match", None)
        assert not blocked.is_set()


@pytest.mark.parametrize("change", [None, "enrolled", "rate", "altered"])
def test_what_was_known_of_a_gallery_is_known_after_a_restart(
    gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch, change: str | None
) -> None:
    """Unless something has changed since, or somebody else has written the file."""
    for module in (validity, deployment_sync):
        monkeypatch.setattr(module, "MIN_SAVED_VECTORS", 1)
    monkeypatch.setattr(validity, "MIN_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
    measure(gallery, MODEL.id)
    gallery.add({MODEL.id: MIDDLE}, [None])
    hub = Validity(frozenset([2 * gallery.pks[-1] + 1]))
    with open_engine(gallery.resources) as engine:
        find_checked(engine)
        wait_for(lambda: read_validity(engine) == hub)
        wait_for(lambda: bool(list(gallery.resources.indexes.glob("*.check"))))
    if change == "enrolled":
        gallery.add({MODEL.id: people(1, 1, dim=DIM, seed=5)[0]}, ["new"])
    elif change == "rate":
        with writing(gallery.resources.database) as session:
            session.get_one(Deployment, ("staff", "identity")).default_fpir = 0.07
    elif change == "altered":
        [path] = gallery.resources.indexes.glob("*.check")
        path.write_text(path.read_text().replace(f'"hubs": [{min(hub.hubs)}]', '"hubs": []'))
    is_over = threading.Event()
    monkeypatch.setattr(validity, "check", lambda *_: is_over.wait(60))
    with open_engine(gallery.resources) as engine:
        wait_for(lambda: bool(engine.registry.all()))
        assert read_validity(engine) == (deployments.UNCHECKED if change else hub)
        is_over.set()


def test_a_first_measurement_keeps_nobody_from_being_named(gallery: GalleryWriter, blocked: threading.Event) -> None:
    with open_engine(gallery.resources) as engine:
        wait_until_measured(engine, PEOPLE * PHOTOS)
        own = people(PEOPLE, PHOTOS, dim=DIM, spread=0.5)[0][0]
        assert decide_search(search(engine, own)) == ("match", None)


def test_a_roll_back_to_a_model_that_is_not_loaded_waits_for_its_check(
    resources: Resources, blocked: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment_sync, "MAX_PRELOADED_BYTES", -(10**12))
    other = make_model("m-previous", dim=DIM)
    rows, names = people(PEOPLE, PHOTOS, dim=DIM, spread=0.5)
    gallery = GalleryWriter(resources).make(MODEL, previous=other)
    gallery.add({MODEL.id: rows, other.id: rows}, names)
    measure(gallery, other.id)
    later, names = people(1, 1, dim=DIM, seed=5)
    gallery.add({MODEL.id: later, other.id: later}, ["new"])
    with open_engine(resources) as engine:
        wait_until_measured(engine, len(rows) + 1)
        assert list(engine.registry.all()[0].indexes) == [MODEL.id]
        gallery.point(champion=other.id, previous=MODEL.id)
        wait_for(lambda: other.id in engine.registry.all()[0].indexes)
        loaded_at = time.monotonic()
        wait_for(lambda: engine.follower.last_step_at > loaded_at)
        assert engine.registry.all()[0].champion.key.model_id == MODEL.id
        assert decide_search(search(engine, rows[0])) == ("match", None)
        blocked.set()
        wait_for(lambda: engine.registry.all()[0].champion.key.model_id == other.id)
        assert decide_search(search(engine, rows[0])) == ("match", None)


def test_hubs_are_known_while_a_deployment_is_changed(
    gallery: GalleryWriter, engine: Engine, unmeasured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.add({MODEL.id: MIDDLE}, ["hub"])
    hubs = frozenset([owner_of(gallery, gallery.pks[-1])])
    wait_for(lambda: read_validity(engine).hubs == hubs)
    put, served = Registry.put, list[ServedDeployment]()
    monkeypatch.setattr(Registry, "put", lambda registry, one: (served.append(one), put(registry, one)))
    gallery.point(previous=MODEL.id)
    wait_for(lambda: engine.registry.all()[0].pointers["previous"] == MODEL.id)
    assert {one.find_validity(MODEL.id).hubs for one in served} == {hubs}
