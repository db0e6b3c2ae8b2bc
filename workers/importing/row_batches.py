"""Take as many rows of an import as are stored in one transaction."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

Row = TypeVar("Row")

MAX_BATCH_CHARACTERS = 16 * 2**20
"""Characters of names and metadata, as JSON in ASCII, that one transaction stores."""


def take_rows(rows: Iterator[Row], max_rows: int, count_characters: Callable[[Row], int]) -> list[Row]:
    """Return the next rows: at most `max_rows`, and no more once they have MAX_BATCH_CHARACTERS together.

    One row is taken however long it is.
    """
    batch: list[Row] = []
    characters = 0
    for row in islice(rows, max_rows):
        batch.append(row)
        characters += count_characters(row)
        if characters >= MAX_BATCH_CHARACTERS:
            break
    return batch
