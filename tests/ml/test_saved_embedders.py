"""Embedders that were saved by version 0.1 load, and embed as they did."""

import subprocess
import sys
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


@pytest.mark.parametrize("name", ["auto", "cosine", "l2", "ldml", "low_rank", "wccn", "wpca"])
def test_serving_one_linear_map_does_not_import_torch(name: str) -> None:
    """It takes more than a second of processor time, in every process that serves such a model."""
    code = f"""
import sys
from pathlib import Path
import numpy as np
from ml.registry import component
embedder = component("embedders", "{name}").load(Path({str(SAVED / name)!r}))
rows = np.random.default_rng(0).random((3, embedder.width or 8), np.float32)
assert embedder.embed(rows, embedder.tasks[-1]).shape[0] == 3
embedder.maps(rows), embedder.metric, embedder.options()
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
