"""What a service must reach, compared with what `benchmarks.service` measured."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.service_load import LEAST, ONE, TWO

Row = Mapping[str, Any]
SECONDS_TO_READY = {
    (13_000, "from the rows"): 2.0,
    (13_000, "from the snapshot"): 2.0,
    (1_000_000, "from the snapshot"): 5.0,
    (1_000_000, "from the rows"): 15.0,
}
MIN_RATIOS = {LEAST: 0.8, "milvus": 1.2, "pgvector": 2.0}
"""Program -> the rate of one API process over its rate."""


class ServiceGoal(NamedTuple):
    """A figure and its limit. is_least: whether the figure must not be less; otherwise it must not be more"""

    what: str
    value: float
    limit: float
    is_least: bool = False

    @property
    def verdict(self) -> str:
        is_reached = self.value >= self.limit if self.is_least else self.value <= self.limit
        return "reached" if is_reached else "MISSED"


def list_goals(results: Mapping[str, Sequence[Row]]) -> list[ServiceGoal]:
    """Return the goals of which there are figures. results: name of a step of `benchmarks.service` -> its rows"""
    readers = {
        "load": read_load, "engines": read_engines, "vectors": read_vectors, "photos": read_photos,
        "starts": read_starts, "reembedding": read_reembedding, "swap": read_swap,
    }  # fmt: skip
    return [goal for name, read in readers.items() for row in results.get(name, ()) for goal in read(row)]


def read_load(row: Row) -> Iterator[ServiceGoal]:
    if row["clients"] == 1:
        return
    what = f"{row['faces']:,} faces, {row['clients']} clients: searches a second"
    yield ServiceGoal(f"{what}, one process / least program", row[f"{ONE} / {LEAST}"][0], MIN_RATIOS[LEAST], True)
    yield ServiceGoal(f"{what}, two processes / one", row[f"{TWO} / {ONE}"][0], 1.8, True)


def read_engines(row: Row) -> Iterator[ServiceGoal]:
    what = f"{row['faces']:,} faces, {row['clients']} clients, equal recall"
    for engine in MIN_RATIOS.keys() & row.keys() - {LEAST}:
        ratio = row[f"{ONE} / {engine}"][0]
        yield ServiceGoal(f"{what}: searches a second / {engine}", ratio, MIN_RATIOS[engine], True)
        for column, name in ((1, "median"), (2, "p99")):
            ratio = round(row[ONE][column] / row[engine][column], 2)
            yield ServiceGoal(f"{what}: {name} / {engine}", ratio, 1.0)


def read_vectors(row: Row) -> Iterator[ServiceGoal]:
    what = f"import of {row['vectors']:,} vectors"
    yield ServiceGoal(f"{what} / FAISS train + add", round(row["ratio"], 2), 3.0)
    yield ServiceGoal(f"{what}: disk / raw bytes", round(row["disk_ratio"], 2), 1.5)


def read_photos(row: Row) -> Iterator[ServiceGoal]:
    faces = row["service"]["collection"]["face_count"]
    yield ServiceGoal(f"import of photos with {faces:,} faces / bare pipeline", round(row["ratio"], 2), 0.8, True)


def read_starts(row: Row) -> Iterator[ServiceGoal]:
    limit = SECONDS_TO_READY.get((row["faces"], row["start"]))
    if limit is not None:
        yield ServiceGoal(f"{row['faces']:,} faces, start {row['start']}, s", row["seconds"], limit)
    if "api_mib" in row:
        what = f"{row['faces']:,} faces, memory of the API, {row['start']}, MiB"
        yield ServiceGoal(what, row["api_mib"], row["api_goal_mib"])


def read_reembedding(row: Row) -> Iterator[ServiceGoal]:
    what = f"re-embedding {row['faces']:,} descriptors of {row['dim']:,} numbers / read + product"
    yield ServiceGoal(what, row["ratio_seconds"], 1.5)


def read_swap(row: Row) -> Iterator[ServiceGoal]:
    what = f"swap of {row['faces']:,} faces under load"
    yield ServiceGoal(f"{what}: errors", row["errors"], 0)
    yield ServiceGoal(f"{what}: p99 / quiet p99", row["p99_ratio"], 2.0)
