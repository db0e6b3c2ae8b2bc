"""The options of an index with two stages."""

from dataclasses import dataclass
from typing import Literal

from ml.options import option


@dataclass(frozen=True)
class TwoStageOptions:
    """How the first stage is compressed, where the rows of the second lie, and how exact a search is by default."""

    bits: Literal[1, 2, 4] = option(2, "bits of the first stage for each number of an embedding", unit="bits")
    rows: Literal["memory", "file"] = option(
        "memory",
        "where the rows of the second stage lie: in memory, or in a file of which the system keeps in memory what it "
        "has room for",
    )
    target_recall: float = option(
        0.99,
        "share of the ten nearest that the first stage must keep; how many candidates that takes is measured",
        low=0.5,
        high=1.0,
    )
