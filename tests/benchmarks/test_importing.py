"""The reference of an import does what the service does with a photo, and nothing else."""

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bare_pipeline import cut_aligned, list_photo_places, process_share
from benchmarks.drawn_crops import write_drawn_crops
from ml.aligners.similarity import CROP_SIZES_PIXELS
from ml.pipeline import default_front_end


def test_drawn_crops_differ_and_are_all_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "LIKENESS_DEFAULT_RECOGNISER", "lbp")
    path = tmp_path / "crops.tar"
    write_drawn_crops(path, 25)
    places = list_photo_places([path])
    data = path.read_bytes()
    assert len({data[offset : offset + size] for _, offset, size in places}) == 25
    assert process_share((places, True)) == 25
    assert process_share(([], True)) == 0


@pytest.mark.parametrize("size", [(112, 112), (100, 170), (89, 109)])
def test_the_reference_cuts_the_crops_of_the_service(size: tuple[int, int]) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    face = default_front_end().aligned(picture)
    for kind in CROP_SIZES_PIXELS:
        np.testing.assert_array_equal(cut_aligned(picture, kind), face.crops[kind])
