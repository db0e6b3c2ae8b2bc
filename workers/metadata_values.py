"""Turn values of the metadata into numbers that can be compared, for trainings and evaluations alike."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def encode_values(values: Sequence[object], has_tolerance: bool) -> NDArray[np.float64]:
    """Return (N,) numbers: the values themselves where there is a tolerance, else a number for each different text.
    NaN where the value is None, or where there is a tolerance and it is no number."""
    if has_tolerance:
        return np.array([_parse_number(value) for value in values], np.float64)
    texts = [None if value is None else str(value) for value in values]
    codes = {text: code for code, text in enumerate(sorted({text for text in texts if text is not None}))}
    return np.array([np.nan if text is None else codes[text] for text in texts], np.float64)


def _parse_number(value: object) -> float:
    """Return NaN for what is no finite number, or a larger one than a float can hold."""
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else np.nan
    except (ValueError, OverflowError):
        return np.nan
    return number if np.isfinite(number) else np.nan
