"""What a calibration reads of a gallery, beside searches."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import update
from sqlalchemy.orm import Session

from app.db.session import RAW_ROWS_PER_BATCH, reading, stream_raw_rows, writing
from app.db.tables import Collection, Deployment, Subject
from app.resources import Resources
from app.serving.calibration import gallery_calibration, gallery_faces
from app.serving.calibration.gallery_calibration import renew_calibration
from app.serving.calibration.gallery_faces import GalleryFaces, read_faces
from app.serving.calibration.learned_gallery import LearnedGallery
from app.serving.compensation.store import NO_COMPENSATION
from app.serving.index_builder import IndexKey, build_index
from app.serving.labels.constraints import ServedConstraints
from app.serving.loaded_index import LoadedIndex
from app.serving.scores import Scores
from ml.calibration import Calibration
from ml.distances import EUCLIDEAN
from ml.identification.open_set import OpenSetCalibration, PersonThreshold
from ml.model import Model
from ml.types import Ids, Rows
from tests.ml.test_open_set import crowd
from tests.rows import GalleryWriter, make_model, people


def test_faces_are_read_in_small_parts_with_their_people_and_roles(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a million at once had searches wait for 0.7 s."""
    sizes = list[int]()

    def stream(session: Session, chosen: Any) -> Iterator[Sequence[tuple[Any, ...]]]:
        for rows in stream_raw_rows(session, chosen):
            sizes.append(len(rows))
            yield rows

    rows, subjects = people(300, 2)
    model = make_model("m-1")
    written = GalleryWriter(resources).make(model)
    written.add({model.id: rows}, subjects)
    written.add({model.id: rows[:3]}, [None, None, "p007"], role="distractor")
    other = GalleryWriter(resources, "other").make(model)
    other.add({model.id: rows[:5]}, subjects[:5])
    monkeypatch.setattr(gallery_faces, "stream_raw_rows", stream)
    with reading(resources.database) as session:
        faces, nobody = read_faces(session, "staff"), read_faces(session, "none")
    assert sum(sizes) == 603
    assert max(sizes) <= RAW_ROWS_PER_BATCH
    assert faces.ids.tolist() == written.pks
    assert faces.is_distractor.tolist() == [False] * 600 + [True] * 3
    assert faces.subjects[600:].tolist() == [-1, -1, faces.subjects[14]]
    assert np.unique(faces.subjects[:600], return_counts=True)[1].tolist() == [2] * 300
    assert (faces.ids.dtype, faces.subjects.dtype, len(nobody.ids)) == (np.int64, np.int64, 0)


def test_labels_name_faces_that_are_enrolled() -> None:
    faces = GalleryFaces(np.array([3, 5, 8, 9]), np.array([2, -1, -1, 7]), np.array([False, False, False, True]))
    named = faces.name_labelled({8: 2, 6: 7})
    assert named.subjects.tolist() == [2, -1, 2, 7]
    assert named.is_named.tolist() == [True, False, True, False]
    assert faces.name_labelled({}).subjects.tolist() == [2, -1, -1, 7]


def test_people_and_distractors_whom_labels_joined_are_one_person() -> None:
    faces = GalleryFaces(np.array([3, 5, 8, 9]), np.array([2, 4, -1, -1]), np.array([False, False, True, True]))
    joined = faces.join({2 * 4: 2 * 2, 2 * 9 + 1: 2 * 2})
    assert joined.subjects.tolist() == [2, 2, -1, 2]
    assert joined.is_distractor.tolist() == [False, False, True, False]
    assert faces.join({}).subjects.tolist() == [2, 4, -1, -1]


def test_people_whom_labels_joined_are_measured_with_the_others_and_the_others_alone(resources: Resources) -> None:
    rows, subjects = people(170, 2)
    rows[40:] *= 4  # the first 20 people lie four times as near to each other
    model = make_model("m-1")
    gallery = GalleryWriter(resources).make(model)
    gallery.add({model.id: rows}, subjects)
    gallery.label([(gallery.pks[4 * i], gallery.pks[4 * i + 2]) for i in range(10)], same=True)
    measured = gallery_calibration.measure_gallery(resources, "staff", "identity", model)
    calibration = OpenSetCalibration.from_dict(measured["open_set"]["calibration"])
    assert [strangers.people for strangers in calibration.strangers] == [170, 150]
    assert measured["joined_people"] == 10
    everybody, others = calibration.strangers
    threshold = calibration.threshold(0.01, 340)
    assert threshold is not None
    assert threshold.person_distance == everybody.threshold(0.01)[0] < others.threshold(0.01)[0]


def test_people_who_refused_are_left_out_of_the_measurement_of_strangers(resources: Resources) -> None:
    rows, subjects = people(300, 2)
    model = make_model("m-1")
    GalleryWriter(resources).make(model).add({model.id: rows}, subjects)
    with writing(resources.database) as session:
        session.execute(update(Subject).where(Subject.id >= "p160").values(consent=False))
    measured = gallery_calibration.measure_gallery(resources, "staff", "identity", model)
    [strangers] = OpenSetCalibration.from_dict(measured["open_set"]["calibration"]).strangers
    assert (strangers.people, strangers.gallery_faces) == (160, 320)
    assert np.isfinite(strangers.distances).sum() == len(strangers.distances) > 0
    assert (measured["faces"], measured["named_faces"]) == (600, 320)


def test_a_calibration_during_which_faces_are_removed_is_given_up(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, subjects = people(60, 2)
    model = make_model("m-1")
    GalleryWriter(resources).make(model).add({model.id: rows}, subjects)
    with reading(resources.database) as session:
        created_at = session.get_one(Collection, "staff").created_at
        key = IndexKey("staff", "identity", model.id, created_at)
        index = build_index(session, key, rows.shape[1], model.metric, "cpu")
    loaded = LoadedIndex(key, model, index, 1, NO_COMPENSATION)
    read_rows = index.rows

    def remove_and_read(ids: np.ndarray) -> np.ndarray:
        index.remove(ids[:1])
        return read_rows(ids)

    monkeypatch.setattr(index, "rows", remove_and_read)
    assert not renew_calibration(resources, loaded, ServedConstraints())
    monkeypatch.setattr(index, "rows", read_rows)
    assert renew_calibration(resources, loaded, ServedConstraints())


def test_a_face_that_comes_after_the_others_were_read_does_not_count_as_measured(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, subjects = people(60, 2)
    model = make_model("m-1")
    gallery = GalleryWriter(resources).make(model)
    gallery.add({model.id: rows}, subjects)
    with reading(resources.database) as session:
        collection = session.get_one(Collection, "staff")
        key, change = IndexKey("staff", "identity", model.id, collection.created_at), collection.change
        index = build_index(session, key, rows.shape[1], model.metric, "cpu")
    loaded, last = LoadedIndex(key, model, index, change, NO_COMPENSATION), max(gallery.pks)
    find_learned_gallery = gallery_calibration.find_learned_gallery

    def find_while_a_face_comes(*args: Any) -> LearnedGallery:
        loaded.apply(np.empty(0, np.int64), [(np.array([last + 1]), rows[:1])], change + 1)  # as the follower does
        return find_learned_gallery(*args)

    monkeypatch.setattr(gallery_calibration, "find_learned_gallery", find_while_a_face_comes)
    assert renew_calibration(resources, loaded, ServedConstraints())
    with reading(resources.database) as session:
        measured = session.get_one(Deployment, ("staff", "identity")).measurements[model.id]
    assert (measured["change"], measured["last_face"], measured["faces"]) == (change, last, len(rows))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("named", "hidden", "photos", "spread"), [(60, 400, 1, 0.35), (60, 400, 2, 0.35), (30, 200, 2, 1.0)]
)
def test_distractors_that_show_people_twice_have_no_more_strangers_named_than_stated(
    resources: Resources, named: int, hidden: int, photos: int, spread: float
) -> None:
    """A search for one of them finds the other photo, a distractor, and names nobody; one for a stranger does not."""
    rows, _ = crowd(named + hidden + 1_500, 2, spread=spread)
    rows = rows.reshape(-1, 2, rows.shape[1])
    model = make_model("m-1", dim=rows.shape[2])
    gallery = GalleryWriter(resources).make(model)
    gallery.add({model.id: rows[:named].reshape(2 * named, -1)}, [f"p{i // 2}" for i in range(2 * named)])
    others = rows[named : named + hidden, :photos].reshape(hidden * photos, -1)
    gallery.add({model.id: others}, [None] * len(others), role="distractor")
    measured = gallery_calibration.measure_gallery(resources, "staff", "identity", model)["open_set"]["calibration"]
    threshold = OpenSetCalibration.from_dict(measured).threshold(0.1, len(gallery.pks))
    assert threshold is not None
    assert threshold.source == "distractors"
    owners = np.concatenate([np.arange(named).repeat(2), named + np.arange(len(others))])
    searched = np.concatenate([rows[:named].reshape(2 * named, -1), others])
    is_named = find_named(searched, owners, named, rows[named + hidden :, 0], threshold)
    assert threshold.high is not None
    assert is_named.mean() < (threshold.high if photos == 1 else 0.06)
    assert photos == 2 or is_named.mean() > 0.05, "distractors of different people have a part in the decision"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_pairs_with_distractors_of_a_poorer_camera_do_not_loosen_the_thresholds_of_pairs(resources: Resources) -> None:
    rows, _ = crowd(1_550, 1)
    poor, strangers = rows[250:1_250] + np.random.default_rng(1).normal(0, 0.25, (1_000, 32)), rows[1_250:]
    model = make_model("m-1", dim=32)
    gallery = GalleryWriter(resources).make(model)
    gallery.add({model.id: rows[:250].repeat(2, axis=0)}, [f"p{i // 2}" for i in range(500)])
    gallery.add({model.id: poor.astype(np.float32)}, [None] * 1_000, role="distractor")
    measured = gallery_calibration.measure_gallery(resources, "staff", "identity", model)["calibration"]
    threshold = Calibration.from_dict(measured).impostors.threshold(0.01)
    accepted = (EUCLIDEAN.distances(strangers, rows[:250]) <= threshold.distance).mean()
    assert 0.005 < accepted < 0.02


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_few_people_are_named_beside_distractors_that_look_alike(resources: Resources) -> None:
    """Pairs of such distractors are all near, and nobody was named beside them."""
    rows, _ = crowd(1_012, 3)
    alike = rows[36:37] + np.random.default_rng(1).normal(0, 0.02, (300, 32)).astype(np.float32)
    model = make_model("m-1", dim=32)
    gallery = GalleryWriter(resources).make(model)
    enrolled = rows[:36].reshape(12, 3, 32)[:, :2].reshape(24, 32)
    gallery.add({model.id: enrolled}, [f"p{i // 2}" for i in range(24)])
    gallery.add({model.id: alike}, [None] * 300, role="distractor")
    scores = Scores.of(gallery_calibration.measure_gallery(resources, "staff", "identity", model), model, "identity")
    threshold = scores.person_threshold(0.05, 324)
    assert threshold is not None
    assert threshold.source == "pairs"
    probes, strangers = rows[2:36:3], rows[39::3]
    found, named = (EUCLIDEAN.distances(queries, enrolled).min(1) <= threshold.person_distance
                    for queries in (probes, strangers))  # fmt: skip
    assert named.mean() <= 0.05
    assert found.mean() > 0.5


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_many_frames_of_four_people_give_no_threshold(resources: Resources) -> None:
    """At a threshold from their pairs, up to 22 % of strangers were named at 1 %."""
    rows, subjects = people(4, 40)
    model = make_model("m-1")
    gallery = GalleryWriter(resources).make(model)
    gallery.add({model.id: rows}, subjects)
    for count, is_known in ((160, False), (240, True)):
        measured = gallery_calibration.measure_gallery(resources, "staff", "identity", model)
        scores = Scores.of(measured, replace(model, calibrations={}), "identity")
        assert scores.calibration is not None
        assert (scores.person_threshold(0.01, count) is not None) is is_known
        gallery.add({model.id: people(2, 40, seed=7)[0]}, ["x"] * 40 + ["y"] * 40)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_peoples_own_faces_without_a_name_do_not_hide_strangers_from_the_measurement(resources: Resources) -> None:
    """They took all places of the people compared, and up to 53 % of strangers were named at 5 %."""
    rows, _ = crowd(1_300, 13)
    rows = rows.reshape(1_300, 13, -1)
    model = make_model("m-1", dim=rows.shape[2])
    gallery = GalleryWriter(resources).make(model)
    gallery.add({model.id: rows[:300, 0]}, [f"p{i}" for i in range(300)])
    nameless = np.concatenate([rows[i, 1 : 8 + i % 6] for i in range(300)])
    gallery.add({model.id: nameless}, [None] * len(nameless))
    measured = gallery_calibration.measure_gallery(resources, "staff", "identity", model)["open_set"]["calibration"]
    threshold = OpenSetCalibration.from_dict(measured).threshold(0.05, len(gallery.pks))
    assert threshold is not None
    assert threshold.high is not None
    assert find_named(rows[:300, 0], np.arange(300), 300, rows[300:, 0], threshold).mean() <= threshold.high


def find_named(rows: Rows, owners: Ids, named: int, strangers: Rows, threshold: PersonThreshold) -> NDArray[np.bool_]:
    """Return which of (Q, d) strangers a search names, by the nearest of the first owners. owners: rising"""
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    distances = EUCLIDEAN.distances(strangers, rows).astype(float)
    means = np.add.reduceat(rows, starts) / np.diff(starts, append=len(rows))[:, None]
    nearest = np.minimum.reduceat(distances, starts, axis=1)
    base = threshold.rule.base_distances(nearest, EUCLIDEAN.distances(strangers, means).astype(float))
    scored = threshold.rule.person_distances(base, np.ones(base.shape, np.bool_))
    return (scored.argmin(1) < named) & (scored.min(1) <= threshold.person_distance)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("learned_from", [[], ["visitors"]], ids=["a recogniser", "a model trained elsewhere"])
def test_one_photo_of_each_person_tells_the_rates_of_pairs_here(resources: Resources, learned_from: list[str]) -> None:
    """The rates of other people, who lie far apart, were stated as those of this gallery."""
    model = make_far_apart(learned_from)
    rows, _ = people(800, 1)
    GalleryWriter(resources).make(model).add({model.id: rows[:400]}, [f"p{i}" for i in range(400)])
    scores = Scores.of(gallery_calibration.measure_gallery(resources, "staff", "identity", model), model, "identity")
    threshold, own = scores.threshold(0.01), model.calibrations["identity"]
    assert threshold is not None
    assert threshold.enough
    assert threshold.low <= (EUCLIDEAN.distances(rows[400:], rows[:400]) <= threshold.distance).mean() <= threshold.high
    assert scores.probability(np.array([9.0])) == own.probability(np.array([9.0]))


@pytest.mark.parametrize(("task", "by_held_out"), [("identity", []), ("identity", ["identity"]), ("glasses", [])])
def test_pairs_that_a_model_has_learned_elsewhere_are_no_evidence_of_a_rate(task: str, by_held_out: list[str]) -> None:
    """In a gallery of too few people, or for another task than identity, they are all there is."""
    own = make_far_apart([]).calibrations["identity"]
    model = replace(make_far_apart(["visitors"], by_held_out), calibrations={task: own})
    scores, foreign = Scores.of(None, model, task), Scores.of(None, replace(model, provenance={}), task)
    threshold, cautious, usual = (
        scores.threshold(0.01),
        scores.person_threshold(0.1, 50),
        foreign.person_threshold(0.1, 50),
    )
    assert threshold is not None
    assert cautious is not None
    assert usual is not None
    assert threshold.enough is (task in by_held_out)
    assert (cautious.nameless_distance < usual.nameless_distance) is (task not in by_held_out), "a third, not a half"


def make_far_apart(learned_from: Sequence[str], by_held_out: Sequence[str] = ()) -> Model:
    """Make a model that has learned from people who lie farther apart than those of `people`."""
    draw = np.random.default_rng(0)
    far_apart = Calibration.fit(draw.normal(5, 1, 2_000), draw.normal(9, 1, 20_000))
    provenance = {"changes": dict.fromkeys(learned_from, 1), "by_held_out": [*by_held_out]}
    return replace(make_model("m-1"), calibrations={"identity": far_apart}, provenance=provenance)
