"""Measure two models on one collection, on people whom neither has learned from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.serving import index_builder
from ml.evaluation.comparisons.decisions import SearchDistances
from ml.evaluation.comparisons.gate import MIN_PEOPLE
from ml.evaluation.comparisons.labelled_pairs import LabelledPairs, compare_pairs
from ml.evaluation.comparisons.models import ModelComparison, compare_rankings
from ml.evaluation.protocols import Protocol
from ml.evaluation.report import rank_protocol
from ml.evaluation.retrieval import Ranked
from ml.model import Model
from ml.types import Ids, Rows
from workers.context import JobContext
from workers.publishing.joint_embedding import CropGone, embed_faces
from workers.publishing.measurable_faces import Judges, Mask, read_judges
from workers.training.candidate_report import choose_queries
from workers.training.training_data import Told

MAX_PEOPLE = 2000
MAX_PHOTOS_PER_PERSON = 10
MAX_GALLERY_BYTES = 192 * 2**20
"""Of the wider model's embeddings; ranking takes three times as much."""
DISTRACTOR_SHARE = 0.4
"""Of the gallery that is ranked, at most."""
MIN_PAIRS_OF_A_KIND = 20


@dataclass(frozen=True, eq=False)
class Measurement:
    """comparison: None where there was too little to measure with; evidence: what there was, for people and programs.

    models: by what each was measured
    """

    comparison: ModelComparison | None
    evidence: dict[str, Any]
    models: tuple[str, ...]


def measure(
    context: JobContext, collection: str, task: str, models: Sequence[str], *, seen_too: bool = False
) -> Measurement:
    """A baseline and a candidate, or a candidate alone, in this order.

    seen_too: measure on everybody where too few people are new to both; `unseen_by_both` of the evidence is False then
    Raises NotFound (the collection, a model, a crop), ml.Corrupt, ml.Unavailable, Interrupted.
    """
    try:
        return _measured(context, collection, task, models, seen_too)
    except CropGone:  # of a face that was erased meanwhile: once more, without it
        return _measured(context, collection, task, models, seen_too)


def _measured(context: JobContext, collection: str, task: str, models: Sequence[str], seen_too: bool) -> Measurement:
    judges = read_judges(context, collection, task, models)
    evidence = _evidence(judges, collection, models)
    measured_as = tuple(e.measured_as.id for e in judges.exposures)
    faces = judges.unseen
    if seen_too and not _enough(judges, faces) and _enough(judges, np.ones_like(faces)):
        faces = np.ones_like(faces)
    evidence["unseen_by_both"] = bool((faces == judges.unseen).all())
    if not _enough(judges, faces):
        return Measurement(None, evidence, measured_as)
    return Measurement(_compared(context, judges, task, faces), evidence, measured_as)


def _enough(judges: Judges, faces: Mask) -> bool:
    return judges.searchable(faces) >= MIN_PEOPLE or _pairs_suffice(judges, faces)


def _pairs_suffice(judges: Judges, faces: Mask) -> bool:
    """Whether labelled pairs can judge: where nothing else is known, or another task's values are not."""
    same = judges.facts.same[judges.pairs(faces)]
    return judges.nameless and min(int(same.sum()), int((~same).sum())) >= MIN_PAIRS_OF_A_KIND


def _evidence(judges: Judges, collection: str, models: Sequence[str]) -> dict[str, Any]:
    everybody = np.ones_like(judges.known)
    same = judges.facts.same[judges.pairs(judges.unseen)]
    return {
        "collection": collection,
        "faces": len(judges.snapshot.faces),
        "people": judges.searchable(everybody),
        "unseen_people": judges.searchable(judges.unseen),
        "needed_people": MIN_PEOPLE,
        "seen_people": {m: judges.searchable(seen) for m, seen in zip(models, judges.seen, strict=True)},
        "labelled_pairs": {"same": int(same.sum()), "different": int((~same).sum())},
        "needed_pairs_of_a_kind": MIN_PAIRS_OF_A_KIND if judges.nameless else None,
    }


def _compared(context: JobContext, judges: Judges, task: str, faces: Mask) -> ModelComparison:
    models = [exposed.measured_as for exposed in judges.exposures]
    chosen, distractors = _sample(judges, faces, max(index_builder.embedding_size(m, task) for m in models))
    if judges.searchable(faces) < MIN_PEOPLE:
        chosen, distractors = np.empty(0, np.int64), []
    pairs = np.flatnonzero(judges.pairs(faces)) if _pairs_suffice(judges, faces) else np.empty(0, np.int64)
    places = np.union1d(chosen, judges.facts.pairs[pairs])
    told = [judges.snapshot.faces[i] for i in places]
    embedded = embed_faces(context, models, task, [*told, *distractors])
    ranked: ModelComparison | None = None
    if len(chosen):
        at, tail = np.searchsorted(places, chosen), len(told)
        rankings, searches = [], []
        for rows, model in zip(embedded, models, strict=True):
            context.check()
            rankings.append(_rank(judges, chosen, rows[at], rows[tail:], model))
            searches.append(_search(judges, chosen, rows[at], rows[tail:], model) if judges.by_person else None)
        several = len(models) > 1
        ranked = compare_rankings(
            rankings[0] if several else None,
            rankings[-1],
            open_set=judges.by_person,
            searches=(searches[0] if several else None, searches[-1]),
        )
    return _joined(ranked, _by_pairs(judges, pairs, places, embedded, models) if len(pairs) else None)


def _sample(judges: Judges, faces: Mask, width: int) -> tuple[Ids, list[Told]]:
    """Places of the faces to rank, rising, and distractors: as many as fit, people with several photos first."""
    budget = max(1000, MAX_GALLERY_BYTES // (4 * width))
    draw = np.random.default_rng(0)
    others = judges.snapshot.distractors
    most = int(DISTRACTOR_SHARE * budget)
    kept = np.sort(draw.permutation(len(others))[:most])
    eligible = np.flatnonzero(judges.known & faces)
    numbers, member, counts = np.unique(judges.snapshot.people[eligible], return_inverse=True, return_counts=True)
    order = draw.permutation(len(numbers))
    order = order[np.argsort(counts[order] < 2, kind="stable")][: 2 * MAX_PEOPLE]
    several = int((counts[order] >= 2).sum())
    order = np.r_[order[: min(several, MAX_PEOPLE)], order[several:][:MAX_PEOPLE]]
    left, chosen = budget - len(kept), list[Ids]()
    for person in order:
        mine = draw.permutation(eligible[member == person])[:MAX_PHOTOS_PER_PERSON]
        if len(mine) > left:
            break
        chosen.append(mine)
        left -= len(mine)
    places = np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)
    return places, [others[i] for i in kept]


def _rank(judges: Judges, chosen: Ids, rows: Rows, distractors: Rows, model: Model) -> Ranked:
    people = judges.snapshot.people[chosen]
    everybody = np.arange(len(chosen))
    protocol = Protocol("unseen", people, np.empty(0, np.int64), choose_queries(people), everybody)
    values = people.astype(np.float64) if judges.by_person else judges.facts.truth[chosen]
    tolerance = 0.0 if judges.by_person else judges.facts.tolerance
    return rank_protocol(
        rows, protocol, metric=model.metric, values=values, tolerance=tolerance, distractors=distractors
    )


def _search(judges: Judges, chosen: Ids, rows: Rows, distractors: Rows, model: Model) -> SearchDistances:
    people = judges.snapshot.people[chosen]
    return SearchDistances.by_rule(rows, people, distractors, choose_queries(people), model.metric)


def _by_pairs(
    judges: Judges, pairs: Ids, places: Ids, embedded: Sequence[Rows], models: Sequence[Model]
) -> ModelComparison:
    ends = judges.facts.pairs[pairs]
    at = np.searchsorted(places, ends)
    apart = [model.metric.pair_distances(rows, at) for rows, model in zip(embedded, models, strict=True)]
    told = LabelledPairs(
        judges.facts.same[pairs], judges.snapshot.people[ends], [judges.labellers[int(i)] for i in pairs]
    )
    return compare_pairs(apart[0] if len(models) > 1 else None, apart[-1], told)


def _joined(ranked: ModelComparison | None, paired: ModelComparison | None) -> ModelComparison:
    if ranked is None or paired is None:
        found = ranked or paired
        assert found is not None
        return found
    return replace(
        ranked,
        baseline={**ranked.baseline, **paired.baseline},
        candidate={**ranked.candidate, **paired.candidate},
        difference={**ranked.difference, **paired.difference},
        pairs=paired.pairs,
        labellers=paired.labellers,
    )
