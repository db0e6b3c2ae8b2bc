"""The faces of a collection that models can be measured on, and the people whom each model has learned from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.db.lookups import get_collection
from app.db.session import snapshot as at_one_moment
from app.db.tables import Training
from app.galleries import label_consensus
from app.galleries.label_consensus import ConsensusRule
from app.learning.plan import Plan, Source
from ml.embedder_training.examples import TaskExamples
from ml.model import Model
from ml.types import Ids
from workers.context import JobContext
from workers.training import training_data
from workers.training.exposure import Exposure, find_learned_faces, trace_exposure
from workers.training.training_data import TrainingData

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class MeasurableFaces:
    """The faces of one collection, for one task.

    known: (N,) faces whose person is known, or for other tasks whose value is known
    seen: for each model, (N,) faces of people it may have learned from
    labellers: who agrees with each labelled pair
    """

    data: TrainingData
    examples: TaskExamples
    known: Mask
    seen: tuple[Mask, ...]
    exposures: tuple[Exposure, ...]
    labellers: Sequence[str]

    @property
    def by_person(self) -> bool:
        return self.examples.task == "identity"

    @property
    def unseen(self) -> Mask:
        """(N,) faces of people whom none of the models has learned from."""
        known: Mask = np.any(self.seen, axis=0)
        return ~known

    @property
    def nameless(self) -> bool:
        """Whether labels are all that is known of the faces."""
        return bool(np.isnan(self.examples.truth).all())

    def with_seen(self, faces: Sequence[Mask]) -> "MeasurableFaces":
        """Return the same, where each model has learned from the people of these (N,) faces as well."""
        people = self.data.people
        seen = tuple(
            known | np.isin(people, people[also]) if also.any() else known
            for known, also in zip(self.seen, faces, strict=True)
        )
        return replace(self, seen=seen)

    def count_searchable(self, faces: Mask) -> int:
        """Count the people among these faces whom a search can find."""
        people = self.data.people[self.known & faces]
        counts = np.unique(people, return_counts=True)[1]
        return int((counts >= (2 if self.by_person else 1)).sum())

    def select_pairs(self, faces: Mask) -> Mask:
        """Return (P,) which labelled pairs have both faces among these."""
        is_pair: Mask = np.asarray(faces[self.examples.pairs].all(axis=1), np.bool_)
        return is_pair


def read_measurable_faces(context: JobContext, collection: str, task: str, models: Sequence[str]) -> MeasurableFaces:
    """Read the faces of a collection for a task. Raises NotFound, ml.Corrupt, ml.Unavailable (a model)."""
    model_store = context.resources.models
    with at_one_moment(context.resources.database) as session:
        get_collection(session, collection)
        exposures = tuple(trace_exposure(session, model_store, model, [collection]) for model in models)
        rule = label_consensus.read_rule(session, collection, task)
        plan = _make_plan(collection, task, rule, [model_store.get(m) for m in reversed(models)])
        snapshot = training_data.record_snapshot(session, Training(snapshot={}), plan)
        data = training_data.read_training_data(session, plan, snapshot)
        key = context.resources.installation_key
        seen = tuple(find_learned_faces(session, key, exposure, data) for exposure in exposures)
        [examples] = data.tasks
        pks = np.array([f.pk for f in data.faces], np.int64)
        votes = training_data.read_votes(session, snapshot, task)
        labellers = label_consensus.list_agreeing_labellers(votes, pks[examples.pairs], examples.same)
    return MeasurableFaces(data, examples, _find_known(examples, data.people), seen, exposures, labellers)


def _make_plan(collection: str, task: str, rule: ConsensusRule, models: Sequence[Model]) -> Plan:
    """Plan to read what the collection says of a task.

    For identity these are subjects and labels; for another task labels, and the metadata field that one of the models
    has learned it from.
    """
    origins = [Source(task=task, origin="labels").with_rule(rule)]
    if task == "identity":
        origins.insert(0, Source(task=task, origin="subjects"))
    for model in models if task != "identity" else ():
        sources = (model.provenance.get("plan") or {}).get("sources", ())
        learned = [s for s in map(Source.model_validate, sources) if s.task == task and s.origin != "labels"]
        if learned:
            origins.insert(0, learned[0].model_copy(update={"collection": None, "max_pairs": None}))
            break
    return Plan(collection=collection, method="l2", descriptors=(), options={}, sources=tuple(origins), holdout=0.0)


def _find_known(examples: TaskExamples, people: Ids) -> Mask:
    """Find the named faces and those that a label joins with another; for other tasks the faces with a value."""
    known: Mask = ~np.isnan(examples.truth) & examples.member
    if examples.task == "identity":
        known |= np.isin(np.arange(len(people)), examples.pairs[examples.same])
    return known
