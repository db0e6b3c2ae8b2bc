"""Measure how strangers score: search for the held-out people with an embedder that has not learned from them."""

import numpy as np

from ml import indexes
from ml.embedders.base import Embedder
from ml.identification.open_set import OpenSetCalibration
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import GalleryPeople, search_gallery
from ml.identification.stranger_searches import StrangerSearches
from workers.context import JobContext
from workers.training.prepared_data import PreparedData

MAX_SEARCHES = 3000
TASK = "identity"


def measure_held_out_strangers(
    context: JobContext, prepared: PreparedData, embedder: Embedder
) -> OpenSetCalibration | None:
    """Search for each held-out person among all other people's faces. Raises Interrupted.

    embedder: fitted without the held-out people
    Returns None where no held-out person is named, or the embedder has not learned identity.
    """
    if TASK not in embedder.tasks:
        return None
    is_named = np.array([face.subject_pk is not None for face in prepared.data.faces], np.bool_)
    subjects = np.where(is_named, prepared.data.people, -1)
    ids = np.arange(len(subjects))
    people = GalleryPeople.from_rows(ids, subjects, np.zeros(len(subjects), np.bool_))
    chosen = np.zeros(len(people.is_named), np.bool_)
    chosen[people.owners[prepared.held_out & is_named]] = True
    queries = people.sample(chosen, MAX_SEARCHES, np.random.default_rng(0))
    if not len(queries):
        return None
    index = indexes.build(ids, embedder.embed(prepared.rows, TASK), embedder.metric)
    rule = DecisionRule()
    results = search_gallery(index, people, queries, rule, context.check)
    strangers = StrangerSearches.from_distances("held-out", results.stranger, results.owners, len(ids))
    return OpenSetCalibration(rule, (strangers,), optimistic=True)
