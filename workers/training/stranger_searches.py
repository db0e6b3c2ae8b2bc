"""How strangers score under a model that has not learned from them: searches for people held out of a training."""

import numpy as np
from numpy.typing import NDArray

from ml import indexes
from ml.embedders.base import Embedder
from ml.identification.decision_rule import DecisionRule
from ml.identification.open_set import OpenSetCalibration
from ml.identification.searches import GalleryPeople, search_gallery
from ml.identification.stranger_searches import StrangerSearches
from ml.types import Rows
from workers.context import JobContext
from workers.training.training_data import Snapshot

MAX_SEARCHES = 3000
TASK = "identity"


def measure_held_out_strangers(
    context: JobContext, embedder: Embedder, rows: Rows, taken: Snapshot, held: NDArray[np.bool_]
) -> OpenSetCalibration | None:
    """Each of the people held out searches all other faces of the snapshot, without their own.

    embedder: fitted without them; rows: (N, D) descriptors of the snapshot's faces; held: (N,) faces held out. None
    where nobody was, or the embedder does not serve identity. Raises Interrupted.
    """
    if TASK not in embedder.tasks:
        return None
    named = np.array([face.subject_pk is not None for face in taken.faces], np.bool_)
    subjects = np.where(named, taken.people, -1)
    ids = np.arange(len(subjects))
    people = GalleryPeople.from_rows(ids, subjects, np.zeros(len(subjects), np.bool_))
    chosen = np.zeros(len(people.is_named), np.bool_)
    chosen[people.owners[held & named]] = True
    places = people.sample(chosen, MAX_SEARCHES, np.random.default_rng(0))
    if not len(places):
        return None
    index = indexes.build(ids, embedder.embed(rows, TASK), embedder.metric)
    rule = DecisionRule()
    found = search_gallery(index, people, places, rule, context.check)
    strangers = StrangerSearches.from_distances("held-out", found.stranger, found.owners, len(ids))
    return OpenSetCalibration(rule, (strangers,), optimistic=True)
