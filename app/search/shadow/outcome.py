"""What two answers to one search have in common."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.search.matching import SearchHits
from app.search.schemas import Decision
from app.serving.shadow.totals import Sums

MAX_COMPARED_PEOPLE = 10


@dataclass(frozen=True)
class SearchOutcome:
    """What is compared of the answer for one query face. People are numbered as in `LabelConstraints`.

    people: the nearest ones, nearest first; named: the id of the person of a match, None if there is no name
    probability: that the first match is right, None if not calibrated or if there is no match
    """

    people: tuple[int, ...]
    decision: Decision | None
    named: str | None = None
    probability: float | None = None


def list_outcomes(hits: SearchHits, limit: int) -> list[SearchOutcome]:
    """List the outcome of each query face. limit: the number of matches that the search asked for"""
    outcomes = []
    for nearest, (decision, subject) in zip(hits.nearest, hits.decisions, strict=True):
        first = nearest[: min(limit, MAX_COMPARED_PEOPLE)]
        people = tuple(dict.fromkeys(match.person for match in first))
        probability = first[0].probability if first else None
        outcomes.append(SearchOutcome(people, decision, subject["id"] if subject else None, probability))
    return outcomes


def compare_outcomes(champion: SearchOutcome, challenger: SearchOutcome) -> Sums:
    """Return what the comparison of two answers adds to the totals."""
    overlap = compute_overlap(champion.people, challenger.people)
    sums = {
        "compared": 1,
        "same_first": int(champion.people[:1] == challenger.people[:1]),
        "overlap": overlap,
        "overlap_squares": overlap**2,
    }
    if champion.decision is not None and challenger.decision is not None:
        sums |= _compare_decisions(champion, challenger)
    if champion.probability is not None and challenger.probability is not None:
        difference = challenger.probability - champion.probability
        sums |= {
            "probabilities": 1,
            "probability_difference": difference,
            "probability_difference_squares": difference**2,
        }
    return sums


def compute_overlap(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the Jaccard index of two lists: people in both over people in either, 0 to 1; 1 if both are empty."""
    union = set(first) | set(second)
    return len(set(first) & set(second)) / len(union) if union else 1.0


def _compare_decisions(champion: SearchOutcome, challenger: SearchOutcome) -> dict[str, float]:
    is_same_person = champion.named == challenger.named
    by_champion, by_challenger = champion.decision == "match", challenger.decision == "match"
    return {
        "decided": 1,
        "same_decision": int(champion.decision == challenger.decision and is_same_person),
        "named_by_both": int(by_champion and by_challenger),
        "named_differently": int(by_champion and by_challenger and not is_same_person),
        "named_by_champion_only": int(by_champion and not by_challenger),
        "named_by_challenger_only": int(by_challenger and not by_champion),
    }
