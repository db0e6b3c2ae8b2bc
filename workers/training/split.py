"""Split the people of the training data into those learned from and those held out to measure on."""

import math
from collections.abc import Mapping
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from ml.embedder_training.examples import TaskExamples
from ml.identification.stranger_searches import MIN_STRANGERS
from ml.types import Ids
from workers.training.training_data import TrainingData

UNLABELLED_HOLDOUT_SHARE = 0.5
"""Share held out of the people without labels, where only labels are learned from: holding them out costs little."""
MIN_STRANGERS_HELD_OUT = 160
"""Of a collection with twice as many people, so many are held out, since a threshold needs 150 who can be searched for
(`ml.identification.stranger_searches`). Without one, the model would name hardly anybody. Of a smaller collection, as
many are strangers to several fits together: see `choose_further_holdouts`."""
MIN_SHARE_PER_FIT = 0.2
"""Of the people with names, so many at least are strangers to each further fit: it is fitted four times at most."""
MIN_PEOPLE_PER_SIDE = 2
"""People who must be held out for a report, and who must remain to learn from."""


def choose_held_out_faces(
    data: TrainingData, share: float, min_strangers: int = MIN_STRANGERS_HELD_OUT
) -> NDArray[np.bool_]:
    """Return (N,) which faces are held out: of each task's people, those whose draw is below the share.

    If these are fewer than `min_strangers`, and half of the people are as many, those with the lowest draws are added.
    Nobody is held out where the share is 0, or no task has enough people.
    """
    held_out: set[int] = set()
    draws = dict(zip(data.people.tolist(), data.holdout_draw.tolist(), strict=True))
    for examples in data.tasks if share else ():
        people = sorted(_list_searchable(examples, data.people), key=lambda p: (draws[p], p))
        below = sum(draws[p] < share for p in people)
        if examples.task == "identity" and len(people) >= 2 * min_strangers:
            below = max(below, min_strangers)
        if len(people) >= 2 * MIN_PEOPLE_PER_SIDE:
            held_out.update(people[: min(max(below, MIN_PEOPLE_PER_SIDE), len(people) - MIN_PEOPLE_PER_SIDE)])
        if examples.derived == "labels":
            unlabelled = set(people) - set(data.people[examples.pairs].ravel().tolist())
            held_out.update(p for p in unlabelled if draws[p] < max(share, UNLABELLED_HOLDOUT_SHARE))
    return np.isin(data.people, sorted(held_out))


def choose_further_holdouts(
    data: TrainingData, held_out: NDArray[np.bool_], needed: Mapping[str, int]
) -> list[NDArray[np.bool_]]:
    """Return (N,) which faces each further fit leaves out, so that enough people with names are strangers to some fit.

    held_out: (N,) which faces are held out already
    needed: collection -> how many of its people must be strangers to one fit or another, if there are as many
    Everybody is held out at most once; those whom the task identity learns from, and others, are dealt out evenly.
    Empty where enough are held out already, where nobody is, or where too few people have names for a threshold.
    """
    further = list[NDArray[np.bool_]]()
    for collection, count in needed.items():
        chosen = _choose_of_collection(data, np.any([held_out, *further], axis=0), collection, count)
        nobody = np.zeros(len(held_out), np.bool_)
        further = [a | b for a, b in zip_longest(further, chosen, fillvalue=nobody)]
    return further


def _choose_of_collection(
    data: TrainingData, held_out: NDArray[np.bool_], collection: str, needed: int
) -> list[NDArray[np.bool_]]:
    here = data.lies_in(collection)
    examples = next((e for e in data.tasks if e.task == "identity"), None)
    named = np.unique(data.people[(data.names >= 0) & here])
    strangers = _count_names(data, held_out & here)
    if examples is None or not strangers or strangers >= needed or len(named) < MIN_STRANGERS:
        return []
    draws = dict(zip(data.people.tolist(), data.holdout_draw.tolist(), strict=True))
    learned = {*_list_searchable(examples, data.people), *data.people[examples.pairs].ravel().tolist()}
    rest = sorted(np.setdiff1d(named, data.people[held_out]).tolist(), key=lambda p: (p in learned, draws[p], p))
    share = max(MIN_SHARE_PER_FIT, 1 - len(rest) / len(named))
    parts = max(1, math.ceil(1 / share - 1e-9) - 1)
    further = []
    for part in range(parts):
        if strangers >= needed:
            break
        further.append(np.isin(data.people, rest[part::parts]))
        strangers += _count_names(data, further[-1] & here)
    return further if strangers >= MIN_STRANGERS else []


def _count_names(data: TrainingData, chosen: NDArray[np.bool_]) -> int:
    names = data.names[chosen]
    return len(np.unique(names[names >= 0]))


def _list_searchable(examples: TaskExamples, people: Ids) -> list[int]:
    """List the people whom a search can find.

    For identity these are people with two faces, for other tasks people with one value. Where only labels are known,
    these are all labelled people.
    """
    known = people[examples.member & ~np.isnan(examples.truth)]
    if not len(known):
        return [int(n) for n in np.unique(people[examples.pairs])]
    numbers, counts = np.unique(known, return_counts=True)
    return [int(n) for n in numbers[counts >= (2 if examples.task == "identity" else 1)]]
