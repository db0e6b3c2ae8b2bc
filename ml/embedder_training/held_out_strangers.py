"""Measure how strangers score: search for the held-out people with an embedder that has not learned from them."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ml import indexes
from ml.embedders.base import Embedder
from ml.identification.open_set import OpenSetCalibration
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import GalleryPeople, search_gallery
from ml.identification.stranger_searches import StrangerSearches
from ml.types import Ids, Rows

MAX_SEARCHES = 3000
TASK = "identity"


def measure_held_out_strangers(
    embedder: Embedder,
    people: Ids,
    held_out: NDArray[np.bool_],
    rows: Rows,
    *,
    is_named: NDArray[np.bool_],
    check: Callable[[], None] = lambda: None,
) -> OpenSetCalibration | None:
    """Search for each held-out person among all other people's faces.

    embedder: fitted without the held-out people
    people: (N,) number of each face's person; held_out, is_named: (N,) whether the person is; rows: (N, D) descriptors
    check: called before each batch of searches; it may raise an exception to stop the measurement
    Returns None where no held-out person is named, or the embedder has not learned identity.
    """
    if TASK not in embedder.tasks:
        return None
    ids = np.arange(len(people))
    gallery = GalleryPeople.from_rows(ids, np.where(is_named, people, -1), np.zeros(len(people), np.bool_))
    chosen = np.zeros(len(gallery.is_named), np.bool_)
    chosen[gallery.owners[held_out & is_named]] = True
    queries = gallery.sample(chosen, MAX_SEARCHES, np.random.default_rng(0))
    if not len(queries):
        return None
    index = indexes.build(ids, embedder.embed(rows, TASK), embedder.metric)
    rule = DecisionRule()
    results = search_gallery(index, gallery, queries, rule, check)
    strangers = StrangerSearches.from_distances("held-out", results.stranger, results.owners, len(ids))
    return OpenSetCalibration(rule, (strangers,), optimistic=True)
