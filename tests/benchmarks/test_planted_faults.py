"""Planted faults: what is planted, how findings are counted, and the examination of drawn people."""

import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.drawn_faces import DrawnFaces
from benchmarks.fault_planting import Fault, plant_faults
from benchmarks.photo_faces import PhotoFiles, degrade_image
from benchmarks.planted_faults import PLANTED, Score, measure, score
from ml import images, synthetic_faces


def make_fault(kind: str, *subjects: str, face: int | None = None) -> Fault:
    return Fault(kind, frozenset(subjects), frozenset() if face is None else frozenset({face}))


def test_each_fault_has_people_of_its_own_and_is_in_the_gallery() -> None:
    source = DrawnFaces(count=80)
    gallery = plant_faults(source, 4, seed=1)
    assert Counter(fault.way or fault.kind for fault in gallery.faults) == dict.fromkeys(PLANTED, 4)
    subjects = [subject for fault in gallery.faults for subject in fault.subjects]
    assert len(subjects) == len(set(subjects))
    assert set(subjects) <= {name for name in gallery.names if name is not None}
    for fault in gallery.faults:
        face = next(iter(fault.faces), -1)
        if fault.kind == "wrong_name":
            assert fault.subjects == {gallery.names[face], source.names[face]}
            assert gallery.names[face] != source.names[face]
        if fault.kind == "poor_face":
            assert gallery.faces[face].quality != source.faces[face].quality
    assert plant_faults(source, 4, seed=1).names == gallery.names
    assert plant_faults(source, 4, seed=2).names != gallery.names


def test_findings_are_counted_as_found_related_or_about_others() -> None:
    planted = [make_fault("duplicate", "a", "b"), make_fault("wrong_name", "c", "d", face=3)]
    findings = [
        make_fault("duplicate", "b", "a"),
        make_fault("duplicate", "c", "d"),
        make_fault("duplicate", "x", "y"),
        make_fault("duplicate", "x", "z"),
        make_fault("wrong_name", "c", "d", face=4),
    ]
    scores = score(planted, findings, before=[make_fault("duplicate", "y", "x")])
    assert scores["duplicate"] == Score(planted=1, found=1, listed=1, related=1, others=2, before=1)
    assert scores["wrong_name"] == Score(planted=1, found=0, listed=0, related=1, others=0, before=0)
    assert scores["mixture"] == Score(0, 0, 0, 0, 0, 0)


def test_a_fault_that_is_not_among_the_listed_findings_is_found_but_not_listed() -> None:
    findings = [make_fault("duplicate", "x", str(number)) for number in range(50)]
    scores = score([make_fault("duplicate", "a", "b")], [*findings, make_fault("duplicate", "a", "b")], before=[])
    assert scores["duplicate"] == Score(planted=1, found=1, listed=0, related=0, others=50, before=0)


def test_faults_among_drawn_people_are_found_in_an_examination() -> None:
    [scores] = measure(DrawnFaces(count=240), count=5, seeds=1)
    assert set(scores) == set(PLANTED)
    assert all(scores[kind].planted == 5 for kind in PLANTED)
    assert all(scores[kind].found >= 4 for kind in ("duplicate", "mixture", "wrong_name"))
    assert scores["poor_face"].found < 5, "some degraded photos are too good to be reported"


def test_photos_of_a_folder_and_of_a_zip_give_the_same_faces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIKENESS_DEFAULT_RECOGNISER", "lbp")
    folder = tmp_path / "photos"
    for person in range(2):
        (folder / f"p{person}").mkdir(parents=True)
        image = synthetic_faces.draw(synthetic_faces.person(person), 0, strength=0.3)
        (folder / f"p{person}" / "1.png").write_bytes(images.encode_png(image))
    (folder / "p1" / "notes.txt").write_text("no photo")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for path in sorted(folder.rglob("*.*")):
            archive.write(path, path.relative_to(folder))
    faces = PhotoFiles([folder]).enrol(tmp_path / "folder.npz")
    zipped = PhotoFiles([tmp_path / "photos.zip"]).enrol(tmp_path / "zip.npz")
    assert faces.names == zipped.names == ["p0", "p1"]
    assert all(np.array_equal(a.row, b.row) for a, b in zip(faces.faces, zipped.faces, strict=True))
    assert faces.faces[0].quality["sharpness"] > 0
    assert PhotoFiles([folder]).enrol(tmp_path / "folder.npz", max_people=1).names in (["p0"], ["p1"])
    degraded = faces.degrade(0, np.random.default_rng(0))
    assert degraded is None or degraded.quality != faces.faces[0].quality


def measure_steps(image: np.ndarray) -> float:
    """Return the mean difference of neighbouring pixels."""
    return float(np.abs(np.diff(image.astype(np.float32), axis=1)).mean())


def test_a_degraded_photo_is_blurred_small_or_pale() -> None:
    image = synthetic_faces.draw(synthetic_faces.person(1), 0)
    degraded = [degrade_image(image, np.random.default_rng(seed)) for seed in range(12)]
    is_small = [one.shape[0] < image.shape[0] for one in degraded]
    is_pale = [one.std() < 0.6 * image.std() for one in degraded]
    is_blurred = [measure_steps(one) < 0.9 * measure_steps(image) for one in degraded]
    assert all(any(kinds) for kinds in zip(is_small, is_pale, is_blurred, strict=True))
    assert 0 < sum(is_small) < 12
    assert 0 < sum(is_pale) < 12
