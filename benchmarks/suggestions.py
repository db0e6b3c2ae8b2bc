"""How often the person that a cluster of faces without a name suggests is the right one.

    python -m benchmarks.suggestions --home HOME --collection NAME [--strangers 600] [--seed 0]

HOME: the folder of a service with the collection, whose people have names, such as `likeness import NAME photos.tar`
fills it; nothing is changed. Half of the photos of each person who has several lose their name, and all photos of
drawn people who have one: these are strangers. The faces are grouped, once with a suggestion wherever a cluster joins a
named person, and once where searches would name that person too.
"""

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from app.config import Settings
from app.resources import open_resources
from ml.calibration import Calibration, draw_impostor_pairs, sample_genuine
from ml.identification.open_set import OpenSetCalibration
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import GalleryPeople, search_gallery
from ml.identification.stranger_searches import StrangerSearches
from ml.people_discovery.discovery import MIN_PROBABILITY, discover_people, find_link_distance
from ml.people_discovery.neighbour_graph import find_links
from ml.types import Ids
from workers.context import JobContext
from workers.discovery.cluster_store import NewCluster, list_clusters
from workers.discovery.gallery import NOBODY, ClusterGallery, read_gallery
from workers.discovery.suggestions import confirm_suggestions

MAX_SEARCHES, MAX_PAIRS = 3_000, 200_000


def hide_names(subjects: Ids, strangers: int, seed: int) -> Ids:
    """Return (N,) the subjects, NOBODY where the name is hidden."""
    rng, hidden = np.random.default_rng(seed), subjects.copy()
    numbers, counts = np.unique(subjects[subjects != NOBODY], return_counts=True)
    for person in numbers[counts > 1]:
        faces = rng.permutation(np.flatnonzero(subjects == person))
        hidden[faces[: len(faces) // 2]] = NOBODY
    hidden[np.isin(subjects, rng.permutation(numbers[counts == 1])[:strangers])] = NOBODY
    return hidden


def measure_strangers(gallery: ClusterGallery) -> OpenSetCalibration:
    """Search for each named person among the others, as a deployment is measured."""
    people = GalleryPeople.from_rows(gallery.pks, gallery.subjects, np.zeros(len(gallery.pks), np.bool_))
    probes = people.sample(people.is_named, MAX_SEARCHES, np.random.default_rng(0))
    searched = search_gallery(gallery.index, people, probes, DecisionRule())
    strangers = StrangerSearches.from_distances("leave-one-out", searched.stranger, searched.owners, len(gallery.pks))
    return OpenSetCalibration(DecisionRule(), (strangers,))


def calibrate(gallery: ClusterGallery) -> Calibration:
    rows, metric = gallery.index.rows(gallery.pks), gallery.model.metric
    pairs = draw_impostor_pairs(gallery.subjects, MAX_PAIRS, 0)
    genuine = sample_genuine(rows, gallery.subjects, MAX_PAIRS // 4, 0, metric)
    return Calibration.fit(genuine, metric.pair_distances(rows, pairs), gallery.subjects[pairs])


def count_suggestions(clusters: list[NewCluster], truth: dict[int, int], known: set[int]) -> Counter[str]:
    """Count the faces without a name by what is suggested for them. known: people of whom other faces have names"""
    counts: Counter[str] = Counter()
    for cluster in clusters:
        for face in cluster.faces if cluster.subject_pk is not None else ():
            is_right = truth[face] == cluster.subject_pk
            counts["right" if is_right else "somebody else" if truth[face] in known else "stranger"] += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--collection", required=True)
    parser.add_argument("--strangers", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with open_resources(Settings(home=args.home)) as resources:
        context = cast(JobContext, SimpleNamespace(resources=resources, check=lambda: None))
        full = read_gallery(context, args.collection, MIN_PROBABILITY)
        truth: dict[int, int] = dict(zip(full.pks.tolist(), full.subjects.tolist(), strict=True))
        gallery = replace(full, subjects=hide_names(full.subjects, args.strangers, args.seed))
        gallery = replace(gallery, calibration=calibrate(gallery), strangers=measure_strangers(gallery))
        show(context, gallery, truth)


def show(context: JobContext, gallery: ClusterGallery, truth: dict[int, int]) -> None:
    known = set(gallery.subjects[gallery.is_named].tolist())
    hidden = [truth[pk] for pk in gallery.pks[~gallery.is_named].tolist()]
    print(f"{len(gallery.pks):,} faces, {len(hidden):,} without a name, {sum(p in known for p in hidden):,} of them of")
    print("people of whom other faces have one")
    distance = find_link_distance(gallery.calibration, MIN_PROBABILITY)
    links = find_links(gallery.index, gallery.pks, np.arange(len(gallery.pks)), distance)
    rows: Any = gallery.index.rows(gallery.pks)
    people = discover_people(rows, links, gallery.model.metric, gallery.calibration, gallery.known)
    joined = list_clusters(gallery, people)
    for name, clusters in (("joined", joined), ("confirmed", confirm_suggestions(context, gallery, joined))):
        counts = count_suggestions(clusters, truth, known)
        print(name, ", ".join(f"{counts[kind]:,} {kind}" for kind in ("right", "somebody else", "stranger")))


if __name__ == "__main__":
    main()
