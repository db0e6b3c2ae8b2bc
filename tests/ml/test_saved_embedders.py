"""Embedders that were saved by version 0.1 load, and embed as they did."""

from pathlib import Path

import numpy as np
import pytest

from ml.registry import component, names
from tests.ml.synthetic_people import people

SAVED = Path(__file__).with_name("saved_embedders")


@pytest.mark.parametrize("name", names("embedders"))
def test_an_embedder_of_an_earlier_version_embeds_as_it_did(name: str) -> None:
    embedder = component("embedders", name).load(SAVED / name)
    expected = np.load(SAVED / name / "embeddings.npy")
    z = embedder.embed(people(12, 4, seed=9).rows[:6], embedder.tasks[-1])
    np.testing.assert_allclose(z, expected, atol=1e-5 * float(np.abs(expected).max()))
