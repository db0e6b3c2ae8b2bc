"""Measure a deployment: score calibration, IVF cells, and the recall/latency curve."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.session import snapshot, writing
from app.db.tables import Collection, Deployment, now
from app.errors import NotFound
from app.galleries.learned_collections import OPEN_SET_ELSEWHERE
from app.galleries.measurements import DEFAULT_FMR
from app.resources import Resources
from app.serving import index_builder
from app.serving.calibration.correction_effect import CorrectionEffect, measure_correction_effect
from app.serving.calibration.gallery_faces import GalleryFaces, count_subjects, read_faces, read_refused_faces
from app.serving.calibration.gallery_pairs import fit_gallery_pairs, measure_unlearned_pairs
from app.serving.calibration.learned_gallery import LearnedGallery, find_learned_gallery
from app.serving.calibration.open_set_measurement import ProbeFaces, measure_open_set
from app.serving.compensation.store import Compensation, read_compensation
from app.serving.index_builder import IndexKey
from app.serving.labels.constraints import ServedConstraints, hash_labels
from app.serving.labels.reader import read_constraints
from app.serving.loaded_index import LoadedIndex
from ml import registry
from ml.calibration import Calibration, ImpostorDistances
from ml.errors import WrongShape
from ml.identification.open_set import HELD_OUT_VERSION, MIN_GALLERY_SHARE, OpenSetCalibration
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import GalleryPeople
from ml.indexes import choose_candidates, measure_candidate_curve, measure_curve
from ml.indexes.base import Index
from ml.model import Model
from ml.types import Ids, Rows

SAMPLE_BYTES = 32 * 2**20
MAX_SAMPLED_PEOPLE, MAX_PHOTOS_PER_PERSON = 2000, 4
MAX_CANDIDATE_SHARE = 0.1
"""Of the faces: a second stage that ranks more of them saves little."""
MAX_QUERIES, MAX_COMPARED_NUMBERS = 100, 2_000_000_000


def measure_gallery(resources: Resources, collection: str, task: str, model: Model) -> dict[str, Any]:
    """Calibrate a model for a task of a collection, from its embeddings in the tables.

    Returns the entry for `Deployment.measurements[model.id]`:

    {"calibration": Calibration.to_dict() or None, "default_fmr", "open_set": {"calibration":
    OpenSetCalibration.to_dict(), "rates": [{fpir, distance, possible_distance, low, high, enough, named_rightly}]} or
    None, "cells": p, "curve": [{m, recall, fraction, ms}], "faces", "named_faces": of these, "labelled_faces": of
    these, by labels alone, "refused_faces", "joined_people", "labels_hash", "people", "subjects": see `Measurement`,
    "change": the last one of the collection by then, "last_face": the largest pk, "index": its name, "measured_at",
    "compensation": version of the source compensation that corrected the embeddings, "seen_share": see
    `estimate_seen_share`, "learned_change": see `LearnedGallery`}

    For an index with two stages there are also "candidates", which the second stage ranks, and "candidate_curve":
    [{candidates, recall_at_1, recall, ms}].

    The calibration is None if this gallery has too few pairs, or if subjects do not define the task; the model's own
    calibration then applies. Probabilities come from this gallery's pairs, or from the model's own calibration where
    too few people have several photos. A model keeps the people whom it has learned from farther apart than others: for
    one that was trained on these people, probabilities come from the people held out of its training, and false-match
    rates from pairs of one of these and a learned one, or from this gallery where its pairs are nearer, or from pairs
    of people who came since. In another gallery, people from whom it has not learned count alone where they are nearer.

    Raises NotFound.
    """
    with snapshot(resources.database) as session:
        created_at = session.scalar(select(Collection.created_at).where(Collection.id == collection))
        if created_at is None:
            raise NotFound(f"no collection {collection!r}")
        compensation = read_compensation(session, collection, task, model.id)
        key = IndexKey(collection, task, model.id, created_at, compensation.version)
        return measure_with_compensation(session, resources, model, key, compensation)


def measure_with_compensation(
    session: Session,
    resources: Resources,
    model: Model,
    key: IndexKey,
    compensation: Compensation,
) -> dict[str, Any]:
    """Calibrate a model as `measure_gallery` does, with embeddings corrected by this compensation."""
    dim = index_builder.find_embedding_size(model, key.task)
    index = index_builder.build_index(
        session,
        key,
        dim,
        model.metric,
        resources.settings.index_device,
        compensation=compensation,
        chosen=index_builder.choose_index(model),
        folder=resources.indexes,
    )
    faces, subjects = read_faces(session, key.collection), count_subjects(session, key.collection)
    change = index_builder.read_change(session, key.collection, key.collection_created_at) or 0
    constraints = read_constraints(session, key.collection, key.task, change)
    refused, loaded = read_refused_faces(session, key.collection), LoadedIndex(key, model, index, change, compensation)
    learned = find_learned_gallery(session, resources.installation_key, loaded, faces.ids, faces.people)
    effect = _find_correction_effect(session, loaded, faces, learned)
    learned_here = _Learned(learned, effect)
    return _measure_index(loaded, faces, refused, learned_here, constraints, change) | {"subjects": subjects}


def renew_calibration(resources: Resources, loaded: LoadedIndex, constraints: ServedConstraints) -> bool:
    """Calibrate a model on its live index and store the result.

    Returns False if the deployment has dropped it, or if faces were removed meanwhile: it is calibrated again then.
    """
    key, database = loaded.key, resources.database
    with snapshot(database) as session:
        faces, refused = read_faces(session, key.collection), read_refused_faces(session, key.collection)
        change = index_builder.read_change(session, key.collection, key.collection_created_at)
        subjects = count_subjects(session, key.collection)
        learned = find_learned_gallery(session, resources.installation_key, loaded, faces.ids, faces.people)
        effect = _find_correction_effect(session, loaded, faces, learned)
    if change is None:
        return False
    try:
        measured = _measure_index(loaded, faces, refused, _Learned(learned, effect), constraints, change)
    except WrongShape:
        return False
    with writing(database) as session:
        collection = session.get(Collection, key.collection, with_for_update=True, populate_existing=True)
        deployment = session.get(Deployment, (key.collection, key.task), populate_existing=True)
        if collection is None or collection.created_at != key.collection_created_at or deployment is None:
            return False
        compensation = read_compensation(session, key.collection, key.task, key.model_id)
        pointers = deployment.champion, deployment.challenger, deployment.previous
        if key.model_id not in pointers or compensation.version != key.compensation:
            return False
        deployment.measurements = deployment.measurements | {key.model_id: measured | {"subjects": subjects}}
        collection.change += 1  # so that every follower reads the new calibration
    return True


class _Learned(NamedTuple):
    """What the model has learned of a gallery.

    effect: what the correction of sources does to the distances of people held out; None: nothing, or none was
    """

    gallery: LearnedGallery
    effect: CorrectionEffect | None


def _find_correction_effect(
    session: Session, loaded: LoadedIndex, faces: GalleryFaces, learned: LearnedGallery
) -> CorrectionEffect | None:
    if not learned.is_trained_here or not loaded.compensation.has_corrections:
        return None
    people = GalleryPeople.from_rows(faces.ids, faces.subjects, faces.is_distractor)
    return measure_correction_effect(session, loaded, people)


def _measure_index(
    loaded: LoadedIndex,
    faces: GalleryFaces,
    refused: Ids,
    learned: _Learned,
    constraints: ServedConstraints,
    change: int,
) -> dict[str, Any]:
    """Measure a gallery as searches find it.

    People whom labels joined are one person.

    refused: pks of the faces that they do not find; change: the last one that the faces, as they were read, contain.
        The index may have applied earlier or later ones alone
    """
    index, change, rng = loaded.index, min(change, loaded.state.change), np.random.default_rng(0)
    sample_size = max(100, SAMPLE_BYTES // (4 * index.dim))
    with loaded.lock.gen_rlock():
        indexed = np.intersect1d(index.ids(), faces.ids, assume_unique=True)
        faces = faces.restrict_to(indexed).restrict_to(np.setdiff1d(faces.ids, refused, assume_unique=True))
        ids, people = faces.ids, faces.people
        sample = np.sort(rng.permutation(len(ids))[:sample_size])
        genuine = np.array(list(_sample_faces_of_people(people, rng)), np.int64)[:sample_size]
        rows, genuine_rows = index.rows(ids[sample]), index.rows(ids[genuine])
    queries = max(10, min(MAX_QUERIES, MAX_COMPARED_NUMBERS // max(1, len(ids) * index.dim)))
    speed = _measure_speed(loaded, rows[rng.permutation(len(rows))[:queries]])
    calibration = None
    if loaded.key.task == "identity":
        pairs_faces = _PairsFaces(sample, rows, genuine_rows, people[genuine])
        calibration = _calibrate_by_pairs(loaded, faces, pairs_faces, learned)
    labelled_subjects, joined_people = constraints.constraints.labelled_subjects, constraints.joined_people
    joined = faces.name_labelled(labelled_subjects).join(joined_people)
    is_joined = np.isin(faces.owners, [*joined_people, *joined_people.values()])
    probes = ProbeFaces(
        faces.is_named, faces.is_distractor, faces.owners, is_joined, joined.is_named, with_learned=faces.is_named
    )
    return {
        "calibration": calibration.to_dict() if calibration else None,
        "default_fmr": DEFAULT_FMR,
        "open_set": _measure_strangers(loaded, joined, probes, learned) if loaded.key.task == "identity" else None,
        "cells": index.cells,
        "index": registry.name_of(type(index)),
        **speed,
        "faces": len(indexed),
        "named_faces": int(joined.is_named.sum()),
        "labelled_faces": len(labelled_subjects),
        "refused_faces": len(refused),
        "joined_people": len(joined_people),
        "labels_hash": hash_labels(labelled_subjects, joined_people),
        "people": len(np.unique(faces.subjects[faces.is_named])),
        "change": change,
        "last_face": int(indexed.max(initial=0)),
        "measured_at": now(),
        "compensation": loaded.key.compensation,
        "seen_share": learned.gallery.seen_share,
        "learned_change": learned.gallery.learned_change,
    }


def _measure_speed(loaded: LoadedIndex, queries: Rows) -> dict[str, Any]:
    """Measure recall against latency, and choose how many candidates a second stage ranks, with (Q, dim) queries."""
    index = cast(Index, loaded)  # searched like an index, but each search shares the lock
    candidate_curve = measure_candidate_curve(index, queries, int(MAX_CANDIDATE_SHARE * loaded.state.vectors))
    if not candidate_curve:
        return {"curve": [point.to_dict() for point in measure_curve(index, queries)] if len(queries) else []}
    target = loaded.model.index.options.get("target_recall", 1.0) if loaded.model.index else 1.0
    candidates = choose_candidates(candidate_curve, float(str(target))).candidates
    return {
        "curve": [point.to_dict() for point in measure_curve(index, queries, candidates=candidates)],
        "candidates": candidates,
        "candidate_curve": [asdict(point) for point in candidate_curve],
    }


def _measure_strangers(
    loaded: LoadedIndex, faces: GalleryFaces, probes: ProbeFaces, learned: _Learned
) -> dict[str, Any]:
    """Measure how strangers score here, by searches for people that the model was not trained on.

    The searches for people held out of its training stand for this gallery only while enough of the one that they
    searched is there.

    probes: which faces may be searched for
    """
    people = GalleryPeople.from_rows(faces.ids, faces.subjects, faces.is_distractor)
    gallery = learned.gallery
    is_learned = gallery.find_learned(faces.ids)
    known_counts = np.bincount(people.owners[is_learned], minlength=len(people.is_named))
    probes = replace(
        probes,
        is_named=probes.is_named & (known_counts == 0)[people.owners],
        all_named=faces.is_named & ~is_learned,
        is_distractor=probes.is_distractor & ~gallery.find_learned_distractors(faces.ids),
    )
    if not gallery.is_trained_here:
        return measure_open_set(loaded, people, probes, None, DecisionRule()).to_dict(len(faces.ids))
    kept, is_home = _read_held_out_searches(loaded.model, loaded.key)
    home_faces = gallery.count_home_faces(faces.ids) if is_home else len(faces.ids)
    strangers = tuple(s for s in kept.strangers if home_faces >= MIN_GALLERY_SHARE * s.gallery_faces)
    if learned.effect is not None:
        carry = learned.effect.searches
        strangers = () if carry is None else tuple(searches.carried_over(carry) for searches in strangers)
    searched_faces = max((s.gallery_faces for s in strangers), default=0)
    left_share = min(1.0, home_faces / searched_faces) if searched_faces else 1.0
    return measure_open_set(loaded, people, probes, strangers, kept.rule, left_share).to_dict(len(faces.ids))


def _read_held_out_searches(model: Model, key: IndexKey) -> tuple[OpenSetCalibration, bool]:
    """Return the searches of people held out of a training: of this collection if it read several, else of its own.

    None are left of a training by an earlier version, whose searches hold for another fit than the one that serves.
    The second value says whether they are of the collection of the training.
    """
    of_others = model.provenance.get(OPEN_SET_ELSEWHERE, {})
    is_home = key.collection not in of_others
    kept = model.provenance.get("open_set", {}).get(key.task) if is_home else of_others[key.collection]
    learned = OpenSetCalibration.from_dict(kept) if kept else None
    return learned if learned and learned.version >= HELD_OUT_VERSION else OpenSetCalibration(DecisionRule()), is_home


class _PairsFaces(NamedTuple):
    """The faces whose pairs are measured.

    sample: (n,) their positions among those of the gallery; rows: (n, dim); genuine_rows, genuine_people: faces of
        people with several photos
    """

    sample: Ids
    rows: Rows
    genuine_rows: Rows
    genuine_people: Ids


def _calibrate_by_pairs(
    loaded: LoadedIndex, faces: GalleryFaces, measured: _PairsFaces, learned: _Learned
) -> Calibration | None:
    """Calibrate by the pairs of a gallery, with the rates of people from whom the model has not learned.

    Returns None if there are too few pairs.
    """
    sample, rows, metric, gallery = measured.sample, measured.rows, loaded.index.metric, learned.gallery
    calibration = fit_gallery_pairs(
        rows, faces.people[sample], faces.is_distractor[sample], measured.genuine_rows, measured.genuine_people, metric,
        loaded.model.calibrations.get(loaded.key.task),
    )  # fmt: skip
    if calibration is None:
        return None
    named = np.where(faces.is_named, faces.subjects, -1)
    is_unlearned = faces.is_named & ~np.isin(named, named[gallery.find_learned(faces.ids)])
    unlearned = measure_unlearned_pairs(
        rows, named[sample], is_unlearned[sample], metric, with_everybody=gallery.is_trained_here
    )
    if gallery.is_trained_here:
        return _judge_by_held_out(calibration, loaded, learned.effect, unlearned)
    return replace(calibration, impostors=calibration.impostors.join_if_nearer(unlearned))


def _judge_by_held_out(
    calibration: Calibration,
    loaded: LoadedIndex,
    effect: CorrectionEffect | None,
    newcomers: ImpostorDistances | None,
) -> Calibration:
    """Replace what the pairs of a gallery tell that the model has learned: they look easier than those of strangers.

    Where a training held nobody out, nothing tells the rates of strangers: they are stated without evidence. So they
    are where it is not known what the correction of sources does to the distances of those held out.

    newcomers: how near they are to everybody; None: there are too few
    """
    model, task, own = loaded.model, loaded.key.task, calibration.impostors
    if task not in model.provenance.get("by_held_out", ()):
        return replace(calibration, impostors=own.join_if_nearer(newcomers).without_evidence())
    unseen = model.calibrations[task]
    carry = effect.pairs if effect else None
    held_out = unseen.impostors.carried_over(carry) if carry else unseen.impostors
    joined = held_out.join_strictest(own).join_if_nearer(newcomers)
    return replace(unseen, impostors=joined if carry or not effect else joined.without_evidence())


def _sample_faces_of_people(people: Ids, rng: np.random.Generator) -> Iterator[np.int64]:
    """Yield the positions of up to MAX_PHOTOS_PER_PERSON faces of each person who has more than one."""
    order = np.argsort(people, kind="stable")
    numbers, start, photos = np.unique(people[order], return_index=True, return_counts=True)
    several: NDArray[np.int64] = np.flatnonzero((numbers >= 0) & (photos > 1))
    for person in rng.permutation(several)[:MAX_SAMPLED_PEOPLE]:
        positions = order[start[person] : start[person] + photos[person]]
        yield from rng.permutation(positions)[:MAX_PHOTOS_PER_PERSON]
