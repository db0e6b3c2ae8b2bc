"""Limits of the cleanup, and its division into steps between which a job can stop."""

from collections.abc import Iterable, Iterator
from itertools import islice

ORPHAN_SECONDS = 3_600.0
"""Age below which a file may belong to rows that are about to be written."""
ITEMS_PER_STEP = 500


def iterate_steps(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield the names in lists of at most ITEMS_PER_STEP."""
    remaining = iter(names)
    while step := list(islice(remaining, ITEMS_PER_STEP)):
        yield step
