"""The classes of requests that wait together, and what is measured of each."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from prometheus_client import Counter, Histogram

WAIT_BUCKETS_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0)
REQUESTS = Counter(
    "likeness_admission",
    "Requests that this process admitted to a slot or refused, by class of work",
    ("work", "outcome"),
    registry=None,
)
WAIT_SECONDS = Histogram(
    "likeness_admission_wait_seconds",
    "Seconds that admitted requests waited for a slot, by class of work",
    ("work",),
    registry=None,
    buckets=WAIT_BUCKETS_SECONDS,
)


class Work(StrEnum):
    """What a request needs.

    SEARCH: an index, but no photo; PHOTO: a photo to be decoded and described
    WRITE: any other change; READ: any other answer
    """

    SEARCH = "search"
    PHOTO = "photo"
    WRITE = "write"
    READ = "read"


SEARCHES: dict[str, Any] = {"x-admission": Work.SEARCH.value}
"""The entry of a route's `openapi_extra` that puts its requests into the class SEARCH."""


def classify_work(method: str, requirements: Mapping[str, str]) -> Work | None:
    """Return the class of a request; None if it needs no slot, as probes and files of the page.

    requirements: the `openapi_extra` of its route
    """
    declared = requirements.get("x-admission")
    if "x-role" not in requirements:
        return None
    if declared is not None:
        return Work(declared)
    if requirements.get("x-body") == "photo":
        return Work.PHOTO
    return Work.READ if method in ("GET", "HEAD") else Work.WRITE
