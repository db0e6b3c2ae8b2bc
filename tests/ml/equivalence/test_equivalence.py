"""Fits with a fixed seed give the embeddings that they gave before the methods were reorganised.

    python -m tests.ml.equivalence.test_equivalence      writes fixtures.npz anew

The fixtures belong to one kind of processor and one thread: other hardware rounds differently, and a descent of many
steps may then end elsewhere. So the comparison runs only where it is asked for: EQUIVALENCE=1 on the machine that wrote
the fixtures.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.ml.equivalence.cases import NEW, Case, fit, list_cases

pytestmark = pytest.mark.skipif(os.environ.get("EQUIVALENCE") != "1", reason="compares on the machine of its fixtures")
FIXTURES = Path(__file__).with_name("fixtures.npz")
TOLERANCE = 1e-5
"""Of the largest norm of the case's embeddings: a single number of an embedding may be near 0, where a relative
difference of its own says nothing."""
CASES = {case.key: case for case in list_cases()}
NUMBERS = {"steps": -1.0, "held_out": -1.0, "loss": -1.0}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def expected() -> dict[str, NDArray[Any]]:
    with np.load(FIXTURES) as file:
        return dict(file)


def measure(case: Case) -> dict[str, NDArray[Any]]:
    """Embeddings and distances for each task, the numbers of the fit, and the steps and losses that it reported."""
    reported: list[tuple[float, float, float]] = []

    def progress(step: int, steps: int, values: dict[str, float]) -> None:
        reported.append((step, steps, values.get("loss", np.nan)))

    embedder = fit(case, progress)
    found: dict[str, NDArray[Any]] = {}
    rows = np.ascontiguousarray(NEW[:, : embedder.width])
    for task in embedder.tasks:
        z = embedder.embed(rows, task)
        found[f"z {task}"] = z[:20]
        found[f"distances {task}"] = embedder.metric.distances(z[:8], z[8:20])
    notes = {name: embedder.notes.get(name) for name in NUMBERS}
    found["notes"] = np.array([-1.0 if notes[n] is None else notes[n] for n in NUMBERS])
    found["progress"] = np.array(reported, np.float32).reshape(-1, 3)
    return found


def largest_norm(z: NDArray[Any]) -> float:
    return float(np.linalg.norm(z, axis=-1).max())


@pytest.mark.parametrize("key", CASES)
def test_a_fit_gives_what_it_gave_before(key: str, expected: dict[str, NDArray[Any]]) -> None:
    found = measure(CASES[key])
    names = {name.removeprefix(f"{key}//") for name in expected if name.startswith(f"{key}//")}
    assert names == found.keys()
    for name, now in found.items():
        then = expected[f"{key}//{name}"]
        assert now.shape == then.shape
        if name == "notes":
            assert now[0] == then[0]
            np.testing.assert_allclose(now, then, rtol=1e-4)
        elif name == "progress":
            np.testing.assert_array_equal(now[:, :2], then[:, :2])
            np.testing.assert_allclose(now[:, 2], then[:, 2], rtol=1e-4, atol=1e-6)
        else:
            assert np.abs(now - then).max() <= TOLERANCE * largest_norm(then)


def main() -> None:
    torch.set_num_threads(1)
    found = {f"{key}//{name}": value for key, case in CASES.items() for name, value in measure(case).items()}
    np.savez_compressed(FIXTURES, **found)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
