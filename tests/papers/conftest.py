"""Fixtures of the tests of `likeness reproduce`."""

from collections.abc import Callable, Iterator

import pytest

from papers.harness import runner


@pytest.fixture(scope="package", autouse=True)
def measure_machine() -> Iterator[Callable[[], float]]:
    """Take this machine for the one that costs are estimated for: measuring it takes longer than most tests.

    Yields the function that measures it.
    """
    measure = runner._measure_machine
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "_measure_machine", lambda: runner.REFERENCE_PROBE_SECONDS)
        yield measure
