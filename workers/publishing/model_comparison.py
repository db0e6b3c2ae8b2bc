"""Measure two models on one collection, on people whom neither has learned from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.db.tables import now
from app.serving import index_builder
from app.storage.stored_faces import CropsDamaged
from ml.evaluation.comparisons.decisions import SearchDistances
from ml.evaluation.comparisons.gate_rule import MIN_PEOPLE
from ml.evaluation.comparisons.labelled_pairs import LabelledPairs, compare_pairs
from ml.evaluation.comparisons.models import ModelComparison, compare_rankings
from ml.evaluation.comparisons.queries import choose_queries, rank_gallery
from ml.evaluation.retrieval import Ranked
from ml.model import Model
from ml.types import Ids, Rows
from workers.context import JobContext
from workers.damaged_faces import mark_or_raise
from workers.publishing.joint_embedding import embed_faces
from workers.publishing.measurable_faces import Mask, MeasurableFaces, read_measurable_faces
from workers.publishing.people_seen_elsewhere import find_people_seen_elsewhere
from workers.training.training_data import FaceRecord

MAX_PEOPLE = 2000
MAX_PHOTOS_PER_PERSON = 10
MAX_GALLERY_BYTES = 192 * 2**20
"""Of the wider model's embeddings; ranking takes three times as much."""
DISTRACTOR_SHARE = 0.4
"""Of the gallery that is ranked, at most."""
MIN_PAIRS_OF_A_KIND = 20


@dataclass(frozen=True, eq=False)
class ModelMeasurement:
    """The comparison of two models.

    comparison: None where there was too little to measure with; evidence: what there was
    models: the models that were measured: each model itself, or its holdout model
    """

    comparison: ModelComparison | None
    evidence: dict[str, Any]
    models: tuple[str, ...]


def measure_models(
    context: JobContext, collection: str, task: str, models: Sequence[str], *, allow_seen: bool = False
) -> ModelMeasurement:
    """Measure a baseline and a candidate, in this order, or a candidate alone.

    allow_seen: measure on everybody where too few people are new to both models; the evidence then has
        `unseen_by_both` False
    Raises NotFound (the collection, a model), CropsDamaged, ml.Corrupt, ml.Unavailable, Interrupted.
    """
    started_at = now()
    try:
        return _measure(context, collection, task, models, allow_seen)
    except CropsDamaged as damage:  # or faces were erased meanwhile: measure again, without them
        mark_or_raise(context.resources, damage, started_at)
        return _measure(context, collection, task, models, allow_seen)


def _measure(
    context: JobContext, collection: str, task: str, models: Sequence[str], allow_seen: bool
) -> ModelMeasurement:
    measurable = read_measurable_faces(context, collection, task, models)
    faces = _choose_faces(measurable, allow_seen)
    sample = None if faces is None else _embed_sample(context, measurable, task, faces)
    if sample is not None and measurable.unseen[sample.indices].all():
        measurable = find_people_seen_elsewhere(context, measurable, task, sample.indices, sample.embedded)
        sample = _keep_unseen(measurable, sample, allow_seen)
    evidence = _list_evidence(measurable, collection, models)
    evidence["unseen_by_both"] = sample is None or bool(measurable.unseen[sample.indices].all())
    comparison = None if sample is None else _compare(context, measurable, sample)
    return ModelMeasurement(comparison, evidence, tuple(e.measured_as.id for e in measurable.exposures))


def _choose_faces(measurable: MeasurableFaces, allow_seen: bool) -> Mask | None:
    """Return (N,) the faces that are new to both models, or all if those are too few; None: there is too little."""
    everybody = np.ones_like(measurable.unseen)
    choices = [measurable.unseen, everybody] if allow_seen else [measurable.unseen]
    return next((faces for faces in choices if _is_enough(measurable, faces)), None)


def _is_enough(measurable: MeasurableFaces, faces: Mask) -> bool:
    return measurable.count_searchable(faces) >= MIN_PEOPLE or _pairs_suffice(measurable, faces)


def _pairs_suffice(measurable: MeasurableFaces, faces: Mask) -> bool:
    """Whether labels are all that is known, and enough labelled pairs of each kind are among these faces."""
    same = measurable.examples.same[measurable.select_pairs(faces)]
    return measurable.nameless and min(int(same.sum()), int((~same).sum())) >= MIN_PAIRS_OF_A_KIND


def _list_evidence(measurable: MeasurableFaces, collection: str, models: Sequence[str]) -> dict[str, Any]:
    everybody = np.ones_like(measurable.known)
    same = measurable.examples.same[measurable.select_pairs(measurable.unseen)]
    return {
        "collection": collection,
        "faces": len(measurable.data.faces),
        "people": measurable.count_searchable(everybody),
        "unseen_people": measurable.count_searchable(measurable.unseen),
        "needed_people": MIN_PEOPLE,
        "seen_people": {m: measurable.count_searchable(seen) for m, seen in zip(models, measurable.seen, strict=True)},
        "labelled_pairs": {"same": int(same.sum()), "different": int((~same).sum())},
        "needed_pairs_of_a_kind": MIN_PAIRS_OF_A_KIND if measurable.nameless else None,
    }


@dataclass(frozen=True, eq=False)
class _Sample:
    """What is embedded to compare models.

    chosen: (n,) faces to rank, rising; pairs: (p,) numbers of labelled pairs; indices: (m,) faces of both, rising
    embedded: for each model, (m + distractors, d) embeddings
    """

    chosen: Ids
    pairs: Ids
    indices: Ids
    embedded: Sequence[Rows]

    def select(self, faces: Mask, pairs: Mask) -> "_Sample":
        """Return the part with these (N,) faces and these (P,) labelled pairs."""
        chosen, kept = self.chosen[faces[self.chosen]], np.isin(self.indices, np.flatnonzero(faces))
        rows = [np.concatenate([part[: len(kept)][kept], part[len(kept) :]]) for part in self.embedded]
        return _Sample(chosen, self.pairs[pairs[self.pairs]], self.indices[kept], rows)


def _embed_sample(context: JobContext, measurable: MeasurableFaces, task: str, faces: Mask) -> _Sample:
    models = [exposure.measured_as for exposure in measurable.exposures]
    chosen, distractors = _sample_faces(
        measurable, faces, max(index_builder.find_embedding_size(m, task) for m in models)
    )
    if measurable.count_searchable(faces) < MIN_PEOPLE:
        chosen, distractors = np.empty(0, np.int64), []
    pairs = (
        np.flatnonzero(measurable.select_pairs(faces)) if _pairs_suffice(measurable, faces) else np.empty(0, np.int64)
    )
    indices = np.union1d(chosen, measurable.examples.pairs[pairs])
    embedded = embed_faces(context, models, task, [*(measurable.data.faces[i] for i in indices), *distractors])
    return _Sample(chosen, pairs, indices, embedded)


def _keep_unseen(measurable: MeasurableFaces, sample: _Sample, allow_seen: bool) -> _Sample | None:
    """Return the part of a sample that is new to both models; where it is too little, the whole sample, or None."""
    unseen = measurable.unseen
    faces = np.zeros_like(unseen)
    faces[sample.indices] = unseen[sample.indices]
    if _is_enough(measurable, faces):
        return sample.select(faces, measurable.select_pairs(faces))
    return sample if allow_seen else None


def _compare(context: JobContext, measurable: MeasurableFaces, sample: _Sample) -> ModelComparison:
    models = [exposure.measured_as for exposure in measurable.exposures]
    ranked: ModelComparison | None = None
    if len(sample.chosen):
        at, tail = np.searchsorted(sample.indices, sample.chosen), len(sample.indices)
        people = measurable.data.people[sample.chosen]
        queries = choose_queries(people)
        rankings, searches = [], []
        for rows, model in zip(sample.embedded, models, strict=True):
            context.check()
            rankings.append(_rank(measurable, sample.chosen, queries, rows[at], rows[tail:], model))
            searches.append(
                SearchDistances.by_rule(rows[at], people, rows[tail:], queries, model.metric)
                if measurable.by_person
                else None
            )
        several = len(models) > 1
        ranked = compare_rankings(
            rankings[0] if several else None,
            rankings[-1],
            open_set=measurable.by_person,
            searches=(searches[0] if several else None, searches[-1]),
        )
    return _merge(ranked, _compare_labelled(measurable, sample, models) if len(sample.pairs) else None)


def _sample_faces(measurable: MeasurableFaces, faces: Mask, width: int) -> tuple[Ids, list[FaceRecord]]:
    """Choose the faces to rank (indices, rising) and the distractors.

    As many are chosen as fit into MAX_GALLERY_BYTES, people with several photos first.
    """
    budget = max(1000, MAX_GALLERY_BYTES // (4 * width))
    draw = np.random.default_rng(0)
    others = measurable.data.distractors
    max_distractors = int(DISTRACTOR_SHARE * budget)
    kept = np.sort(draw.permutation(len(others))[:max_distractors])
    eligible = np.flatnonzero(measurable.known & faces)
    numbers, member, counts = np.unique(measurable.data.people[eligible], return_inverse=True, return_counts=True)
    order = draw.permutation(len(numbers))
    order = order[np.argsort(counts[order] < 2, kind="stable")][: 2 * MAX_PEOPLE]
    several = int((counts[order] >= 2).sum())
    order = np.r_[order[: min(several, MAX_PEOPLE)], order[several:][:MAX_PEOPLE]]
    left, chosen = budget - len(kept), list[Ids]()
    for person in order:
        photos = draw.permutation(eligible[member == person])[:MAX_PHOTOS_PER_PERSON]
        if len(photos) > left:
            break
        chosen.append(photos)
        left -= len(photos)
    indices = np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)
    return indices, [others[i] for i in kept]


def _rank(
    measurable: MeasurableFaces, chosen: Ids, queries: Ids, rows: Rows, distractors: Rows, model: Model
) -> Ranked:
    people = measurable.data.people[chosen]
    values = people.astype(np.float64) if measurable.by_person else measurable.examples.truth[chosen]
    tolerance = 0.0 if measurable.by_person else measurable.examples.tolerance
    return rank_gallery(rows, people, values, distractors, model.metric, queries, tolerance=tolerance)


def _compare_labelled(measurable: MeasurableFaces, sample: _Sample, models: Sequence[Model]) -> ModelComparison:
    ends = measurable.examples.pairs[sample.pairs]
    at = np.searchsorted(sample.indices, ends)
    distances = [model.metric.pair_distances(rows, at) for rows, model in zip(sample.embedded, models, strict=True)]
    labellers = [measurable.labellers[int(i)] for i in sample.pairs]
    labelled_pairs = LabelledPairs(measurable.examples.same[sample.pairs], measurable.data.people[ends], labellers)
    return compare_pairs(distances[0] if len(models) > 1 else None, distances[-1], labelled_pairs)


def _merge(ranked: ModelComparison | None, paired: ModelComparison | None) -> ModelComparison:
    if ranked is None or paired is None:
        part = ranked or paired
        assert part is not None
        return part
    return replace(
        ranked,
        baseline={**ranked.baseline, **paired.baseline},
        candidate={**ranked.candidate, **paired.candidate},
        difference={**ranked.difference, **paired.difference},
        pairs=paired.pairs,
        labellers=paired.labellers,
    )
