"""Which clusters seem to show a person with a name, by the rule that searches decide by."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.db.tables import DEFAULT_FPIR
from ml.identification.searches import GalleryPeople, search_gallery
from ml.types import Ids
from workers.context import JobContext
from workers.discovery.cluster_store import NewCluster
from workers.discovery.gallery import NOBODY, ClusterGallery

MAX_FACES = 10
"""Of a cluster, that are searched with."""


def confirm_suggestions(
    context: JobContext, gallery: ClusterGallery, clusters: Sequence[NewCluster]
) -> list[NewCluster]:
    """Keep the suggested person of a cluster where searches with half of its faces or more would name that person.

    The probability of a pair does not say how near the nearest of many strangers is. The threshold of searches does, at
    which 1 % of strangers are named. Without a threshold all suggestions stay, and so do those of faces that are
    labelled "same" as another. A cluster of one face that is left without a suggestion is dropped. Raises Interrupted.
    """
    suggested = [cluster for cluster in clusters if cluster.subject_pk is not None]
    if gallery.strangers is None or not suggested:
        return list(clusters)
    pairs = (gallery.calibration.impostors,)
    threshold = gallery.strangers.threshold(DEFAULT_FPIR, len(gallery.pks), pairs)
    if threshold is None:
        return list(clusters)
    faces = np.array([pk for cluster in suggested for pk in cluster.faces[:MAX_FACES]], np.int64)
    people = GalleryPeople.from_rows(gallery.pks, gallery.subjects, np.zeros(len(gallery.pks), np.bool_))
    positions = np.searchsorted(gallery.pks, faces)
    searched = search_gallery(gallery.index, people, positions, threshold.rule, context.check)
    names = _list_subjects(people, gallery.subjects)[searched.nearest]
    named = dict(
        zip(faces.tolist(), np.where(searched.stranger <= threshold.person_distance, names, NOBODY), strict=True)
    )
    labelled = set(gallery.pks[gallery.constraints.must_link.ravel()].tolist())
    confirmed = [
        cluster
        if _is_named(cluster, named) or not labelled.isdisjoint(cluster.faces)
        else replace(cluster, subject_pk=None)
        for cluster in clusters
    ]
    return [cluster for cluster in confirmed if cluster.subject_pk is not None or len(cluster.faces) > 1]


def _list_subjects(people: GalleryPeople, subjects: Ids) -> Ids:
    """Return (P,) the subject of each owner, NOBODY of those without a name."""
    of_owners = np.full(len(people.is_named), NOBODY, np.int64)
    of_owners[people.owners] = subjects
    return of_owners


def _is_named(cluster: NewCluster, named: dict[int, np.int64]) -> bool:
    """Whether searches name the suggested person. named: subject that a search with each face names, or NOBODY"""
    if cluster.subject_pk is None:
        return True
    faces = cluster.faces[:MAX_FACES]
    return 2 * sum(int(named[pk]) == cluster.subject_pk for pk in faces) >= len(faces)
