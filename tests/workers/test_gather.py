"""Descriptors of stored crops: computed in order, cached, and with only as many threads as serving leaves free."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import delete

from app.db.session import writing
from app.db.tables import Collection, Face
from app.resources import Resources
from app.storage.blob_store import Blobs
from app.storage.request_timestamp import RequestTimestamp
from app.storage.stored_faces import CropsDamaged
from app.threads import get_threads, set_threads
from ml.images import decode_png
from ml.model import Recipe
from ml.types import Spec
from tests.gallery import crops, enrol
from tests.ml.tiny_onnx import tiny_onnx
from workers.context import Interrupted, JobContext
from workers.description import describe_faces, describe_in_batches
from workers.progress import report_progress

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_faces_are_described_in_their_order(resources: Resources) -> None:
    faces = enrol(resources, "c", range(40), shots=2)
    recipe = Recipe((Spec("lbp", {"cell": 25}), Spec("lbp", {"cell": 50})))
    progress: list[tuple[int, int]] = []
    context = JobContext("j", "w", resources)
    rows = describe_faces(context, recipe, faces, lambda step, steps, _: progress.append((step, steps)))
    grey = [
        np.asarray(decode_png(crops(who, who * 1000 + shot, 1.0)["grey"])) for who in range(40) for shot in range(2)
    ]
    assert np.array_equal(rows, recipe.describe({"grey": np.stack(grey)}))
    assert progress[-1] == (80, 80)
    parts = list(describe_in_batches(context, recipe, faces, size=7))
    assert np.array_equal(np.concatenate(parts), rows)
    assert describe_faces(context, recipe, []).shape == (0, recipe.dim)


def test_a_missing_crop_and_a_cancel_are_reported(resources: Resources) -> None:
    faces = enrol(resources, "c", range(3), shots=1)
    context = JobContext("j", "w", resources)
    resources.blobs.remove("c", [Blobs.crop(faces[1].image_id, 0, "grey")])
    with pytest.raises(CropsDamaged, match="it is missing"):
        describe_faces(context, Recipe(), faces)
    context.interrupted.set()
    with pytest.raises(Interrupted):
        describe_faces(context, Recipe(), faces)


def test_a_training_uses_one_thread_while_searches_are_served(resources: Resources) -> None:
    enrol(resources, "c", [1], shots=1)
    traffic, before = RequestTimestamp(resources.settings.home), get_threads()
    assert traffic.idle_seconds() == float("inf")
    set_threads(2)
    try:
        with report_progress(JobContext("j", "w", resources)) as reporter:
            reporter.share_cores()
            assert torch.get_num_threads() == 2
            traffic.stamp()
            assert traffic.idle_seconds() < 5
            reporter.share_cores()
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2, "the next job begins with all that the process was given"
    finally:
        set_threads(before)


def test_ten_thousand_request_timestamps_take_less_than_a_second(resources: Resources) -> None:
    traffic = RequestTimestamp(resources.settings.home)
    began = time.thread_time()
    for _ in range(10_000):
        traffic.stamp()
    assert time.thread_time() - began < 1


def test_an_expensive_descriptor_is_cached_and_removed_with_its_face(resources: Resources, tmp_path: Path) -> None:
    faces = enrol(resources, "c", range(6), shots=1)
    recipe = Recipe((Spec("lbp", {"cell": 50}), Spec("onnx", {"manifest": str(tiny_onnx(tmp_path))})))
    context = JobContext("j", "w", resources)
    first = describe_faces(context, recipe, faces[:4])
    for face in faces[:4]:
        resources.blobs.remove("c", [Blobs.crop(face.image_id, 0, "colour")])
    again = describe_faces(context, recipe, faces[:4])
    np.testing.assert_array_equal(again, first)
    mixed = describe_faces(context, recipe, faces[2:])
    np.testing.assert_array_equal(mixed[:2], first[2:])
    there = resources.blobs.files_of("c", faces[0].image_id)
    assert [name.rsplit(".", 1)[1] for name in sorted(there)[:2]] == ["f16", "png"]
    assert all(Blobs.parse_name(name) == (faces[0].image_id, 0) for name in there if name.startswith("crops"))


@pytest.mark.parametrize("name", ["c", "deleted"])
def test_nothing_stays_cached_of_faces_that_are_erased_while_they_are_described(
    resources: Resources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """No erasure waits for a worker that has lost its job meanwhile. The files of the faces may be gone by then."""
    kept, erased = enrol(resources, "c", [1], shots=1), enrol(resources, name, [2], shots=1)
    recipe, context = Recipe((Spec("onnx", {"manifest": str(tiny_onnx(tmp_path))}),)), JobContext("j", "w", resources)
    photo, descriptor = erased[0].image_id, type(recipe.built[0])
    describe = descriptor._describe
    gone = (
        delete(Face).where(Face.image_id == photo) if name == "c" else delete(Collection).where(Collection.id == name)
    )

    def describe_and_erase(self: Any, crops: Any) -> Any:
        with writing(resources.database) as session:
            session.execute(gone)
        resources.blobs.remove(name, resources.blobs.files_of(name, photo))
        return describe(self, crops)

    monkeypatch.setattr(descriptor, "_describe", describe_and_erase)
    describe_faces(context, recipe, [*kept, *erased])
    assert [owner for owner in resources.blobs.names(name) if photo in owner] == []
    cached = [Blobs.parse_name(owner)[0] for owner in resources.blobs.names("c") if owner.endswith(".f16")]
    assert cached == [kept[0].image_id]


@pytest.mark.parametrize("size", [0, 1, 9, 11, 13, 15, 20])
def test_a_cached_file_of_the_wrong_size_is_computed_again(resources: Resources, tmp_path: Path, size: int) -> None:
    faces = enrol(resources, "c", range(3), shots=1)
    recipe, context = Recipe((Spec("onnx", {"manifest": str(tiny_onnx(tmp_path))}),)), JobContext("j", "w", resources)
    first = describe_faces(context, recipe, faces)
    broken = resources.blobs.root / "c-c" / Blobs.described(faces[1].image_id, 0, recipe.keys[0])
    assert broken.stat().st_size == 14
    broken.write_bytes(bytes(size))
    np.testing.assert_array_equal(describe_faces(context, recipe, faces), first)
    assert broken.stat().st_size == 14


@pytest.mark.parametrize("at", [0, 9, 13])
def test_a_cached_file_with_a_wrong_bit_is_computed_again(resources: Resources, tmp_path: Path, at: int) -> None:
    faces = enrol(resources, "c", range(3), shots=1)
    recipe, context = Recipe((Spec("onnx", {"manifest": str(tiny_onnx(tmp_path))}),)), JobContext("j", "w", resources)
    first = describe_faces(context, recipe, faces)
    file = resources.blobs.root / "c-c" / Blobs.described(faces[1].image_id, 0, recipe.keys[0])
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    np.testing.assert_array_equal(describe_faces(context, recipe, faces), first)
    assert file.read_bytes() != bytes(data)


@pytest.mark.parametrize("values", [b"", b"\x00\x7e\x00\x00"])
def test_a_cached_file_of_an_earlier_version_is_used_if_its_values_are_finite(
    resources: Resources, tmp_path: Path, values: bytes
) -> None:
    faces = enrol(resources, "c", range(2), shots=1)
    recipe, context = Recipe((Spec("onnx", {"manifest": str(tiny_onnx(tmp_path))}),)), JobContext("j", "w", resources)
    first = describe_faces(context, recipe, faces)
    file = resources.blobs.root / "c-c" / Blobs.described(faces[1].image_id, 0, recipe.keys[0])
    file.write_bytes(values + file.read_bytes()[len(values) : 10])
    np.testing.assert_array_equal(describe_faces(context, recipe, faces), first)
    assert file.stat().st_size == (14 if values else 10)


def test_a_changed_model_file_is_described_anew_under_the_same_name(resources: Resources, tmp_path: Path) -> None:
    [face] = enrol(resources, "c", [1], shots=1)
    context = JobContext("j", "w", resources)
    rows_read = []
    for output in ("code", "minus"):
        recipe = Recipe((Spec("onnx", {"manifest": str(tiny_onnx(tmp_path, output=output))}),))
        rows_read.append(describe_faces(context, recipe, [face]))
    np.testing.assert_array_equal(rows_read[0], -rows_read[1])
