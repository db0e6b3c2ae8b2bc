"""Whether a search names somebody."""

from collections.abc import Sequence

from app.deps.shapes import SubjectRef
from app.search.acceptance import AcceptanceThreshold
from app.search.schemas import Decision, Match

Outcome = tuple[Decision | None, SubjectRef | None]
"""The decision, and the person of a match."""


def decide(threshold: AcceptanceThreshold, matches: Sequence[Match]) -> Outcome:
    """Who a face is, from the nearest people, in any order.

    A face without a name never stands before its person: the nearest person with a name decides, and only where that
    one does not pass does a face without a name. Where a distractor is nearer than everybody with a name, the face is
    unknown.
    """
    if threshold.kind is None:
        return None, None
    matches = sorted(matches, key=_rank)
    first = next((m for m in matches if m["subject"] is not None or m["role"] == "distractor"), None)
    if first is not None and first["role"] == "distractor":
        return "unknown", None
    if first is not None and first["passes"]:
        return "match", first["subject"]
    nameless = [m for m in matches if m["subject"] is None and m["role"] != "distractor"]
    if any(m["passes"] for m in nameless):
        return "match", None
    if threshold.kind == "fpir" and any(_is_possible(threshold, m) for m in ([first] if first else []) + nameless):
        return "possible", None
    return "unknown", None


def _is_possible(threshold: AcceptanceThreshold, match: Match) -> bool:
    distance = match["person_distance"]
    return distance is not None and distance <= threshold.possible_distance


def _rank(match: Match) -> tuple[float, float]:
    """By person distance where that is known, then by distance."""
    distance = match["person_distance"]
    return (float("inf") if distance is None else distance), match["distance"]
