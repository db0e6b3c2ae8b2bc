"""Values of the metadata as numbers, by which trainings and evaluations compare faces."""

import numpy as np
import pytest

from workers.metadata_values import encode_values


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (36, 36.0), (36.5, 36.5), ("36", 36.0), (-(10**300), -1e300), (None, np.nan), (True, np.nan), ([1], np.nan),
        ("old", np.nan), ("inf", np.nan), ("1e400", np.nan), (10**309, np.nan), (-int("9" * 4_300), np.nan),
    ],
)  # fmt: skip
def test_values_with_a_tolerance_are_numbers(value: object, number: float) -> None:
    assert np.array_equal(encode_values([value], has_tolerance=True), [number], equal_nan=True)


def test_values_without_a_tolerance_are_equal_as_texts() -> None:
    values = ["b", 10**309, None, "a", 1, "1", True, str(10**309)]
    codes = encode_values(values, has_tolerance=False)
    assert np.isnan(codes[2])
    stated = [(str(value), code) for value, code in zip(values, codes, strict=True) if value is not None]
    assert len({text for text, _ in stated}) == len({code for _, code in stated}) == len(set(stated))
