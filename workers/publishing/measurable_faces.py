"""What a collection has to measure models with: the faces that somebody vouches for, and who has learned from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.db.session import snapshot as at_one_moment
from app.db.tables import Collection, Training
from app.errors import NotFound
from app.learning import label_consensus
from app.learning.plan import Plan, Source
from ml.model import Model
from ml.types import Ids
from workers.context import JobContext
from workers.publishing.exposure import Exposure, exposure, learned_from
from workers.training import training_data
from workers.training.training_data import Facts, Snapshot

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Judges:
    """What a collection has to measure models with.

    known: (N,) faces of which it is known who they are, or for other tasks what value they have
    seen: of each model, (N,) faces of people it may have learned from
    """

    snapshot: Snapshot
    facts: Facts
    known: Mask
    seen: tuple[Mask, ...]
    exposures: tuple[Exposure, ...]
    labellers: Sequence[str]

    @property
    def by_person(self) -> bool:
        return self.facts.task == "identity"

    @property
    def unseen(self) -> Mask:
        """(N,) faces of people whom none of the models has learned from."""
        known: Mask = np.any(self.seen, axis=0)
        return ~known

    @property
    def nameless(self) -> bool:
        """Whether labels are all that is known."""
        return bool(np.isnan(self.facts.truth).all())

    def searchable(self, faces: Mask) -> int:
        """People among these faces who have something to be found."""
        people = self.snapshot.people[self.known & faces]
        counts = np.unique(people, return_counts=True)[1]
        return int((counts >= (2 if self.by_person else 1)).sum())

    def pairs(self, faces: Mask) -> Mask:
        """(P,) labelled pairs whose people are both among these."""
        found: Mask = np.asarray(faces[self.facts.pairs].all(axis=1), np.bool_)
        return found


def read_judges(context: JobContext, collection: str, task: str, models: Sequence[str]) -> Judges:
    """Of a task of a collection, as the tables are now. Raises NotFound, ml.Corrupt, ml.Unavailable (a model)."""
    generations = context.resources.generations
    with at_one_moment(context.resources.database) as session:
        if session.get(Collection, collection) is None:
            raise NotFound(f"no collection {collection!r}")
        exposures = tuple(exposure(session, generations, model, [collection]) for model in models)
        plan = _plan(collection, task, [generations.get(m) for m in reversed(models)])
        at = training_data.taken(session, Training(snapshot={}), plan)
        taken = training_data.read(session, plan, at)
        seen = tuple(learned_from(session, exposed, taken) for exposed in exposures)
        [facts] = taken.tasks
        pks = np.array([f.pk for f in taken.faces], np.int64)
        labellers = label_consensus.labellers(session, at["labels"].get(task, []), pks[facts.pairs], facts.same)
    return Judges(taken, facts, _known(facts, taken.people), seen, exposures, labellers)


def _plan(collection: str, task: str, models: Sequence[Model]) -> Plan:
    """Where the collection says who is the same: its subjects and labels; for another task the metadata field that one
    of the models learned it from, and labels."""
    origins = [Source(task=task, origin="labels")]
    if task == "identity":
        origins.insert(0, Source(task=task, origin="subjects"))
    for model in models if task != "identity" else ():
        told = (model.facts.get("plan") or {}).get("sources", ())
        learned = [s for s in map(Source.model_validate, told) if s.task == task and s.origin != "labels"]
        if learned:
            origins.insert(0, learned[0].model_copy(update={"collection": None, "max_pairs": None}))
            break
    return Plan(collection=collection, method="l2", descriptors=(), options={}, sources=tuple(origins), holdout=0.0)


def _known(facts: Facts, people: Ids) -> Mask:
    """Named faces, and faces that a label joins with another; for other tasks faces with a value."""
    known: Mask = ~np.isnan(facts.truth) & facts.member
    if facts.task == "identity":
        known |= np.isin(np.arange(len(people)), facts.pairs[facts.same])
    return known
