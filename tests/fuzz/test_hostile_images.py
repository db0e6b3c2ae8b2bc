"""Every hostile image is decoded or refused with a sentence, and none harms the front end.

`FUZZ_CASES=20000 pytest tests/fuzz/test_hostile_images.py` tries more. `python -m tests.fuzz.attack_server` sends them
to a running service.
"""

import os

import pytest

from ml import images
from ml.errors import Unreadable
from ml.images import ImageLimits
from ml.pipeline import default_front_end
from tests.fuzz.hostile_images import HostileImages

CASES = int(os.environ.get("FUZZ_CASES", "200"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
SMALL_LIMITS = ImageLimits(max_pixels=1_000_000)
"""Bombs are drawn smaller in this test, so that it takes seconds."""


@pytest.mark.filterwarnings("default")  # Pillow warns of damaged metadata
def test_a_hostile_image_is_decoded_or_refused() -> None:
    hostile, front_end = HostileImages(SEED, SMALL_LIMITS.max_pixels), default_front_end()
    decoded: set[str] = set()
    refusals: dict[str, list[tuple[str, str]]] = {}
    for _ in range(CASES):
        name, data = hostile.draw()
        try:
            assert 0 < images.OpenedPhoto(data, SMALL_LIMITS).pixels <= SMALL_LIMITS.max_pixels
            photo = images.read(data, SMALL_LIMITS)
        except Unreadable as error:
            refusals.setdefault(name, []).append((error.code, str(error)))
            continue
        assert photo.size <= 3 * SMALL_LIMITS.max_pixels
        front_end.faces(photo)
        decoded.add(name)
    assert {"bomb", "extreme_shape", "exif_bomb", "odd_turn"} <= decoded
    assert {"truncated", "over_limit", "other_format", "no_image", "many_segments"} <= refusals.keys()
    assert all(text for reasons in refusals.values() for _, text in reasons)
    codes = {code for reasons in refusals.values() for code, _ in reasons}
    assert codes == {"InvalidImageFormat", "ImageTooLarge"}
