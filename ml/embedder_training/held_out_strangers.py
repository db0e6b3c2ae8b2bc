"""Measure how strangers score: search for the held-out people with embedders that have not learned from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml import indexes
from ml.calibration import draw_impostor_pairs
from ml.embedder_training.carried_distances import carry_over, pair_distances
from ml.embedder_training.holdout_fit import HoldoutFit
from ml.embedders.base import Embedder
from ml.identification.open_set import OpenSetCalibration
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import GalleryPeople, SearchOutcomes, search_gallery
from ml.identification.stranger_searches import StrangerSearches
from ml.types import Ids, Rows

MAX_SEARCHES = 3000
COMPARED_PAIRS = 50_000
"""Pairs of different learned people by which the two fits are compared: see `carry_over`."""
TASK = "identity"


@dataclass(frozen=True, eq=False)
class FittedGallery:
    """The faces of a training, with the people that searches find among them.

    rows: (N, D) descriptors; people: the owners of the faces
    is_probe: (N,) which faces may be searched for: those enrolled with a name
    is_joined: (N,) faces of people whom labels joined from several names
    """

    rows: Rows
    people: GalleryPeople
    is_probe: NDArray[np.bool_]
    is_joined: NDArray[np.bool_]

    @classmethod
    def from_faces(cls, rows: Rows, people: Ids, names: Ids) -> "FittedGallery":
        """Make a gallery in which all faces of a person have a name if one of them has.

        people: (N,) number of each face's person; names: (N,) number of the name it was enrolled with, -1 if none
        """
        has_name = names >= 0
        named, counts = np.unique(np.unique(np.stack([people, names])[:, has_name], axis=1)[0], return_counts=True)
        owners = np.where(np.isin(people, named), people, -1)
        gallery = GalleryPeople.from_rows(np.arange(len(people)), owners, np.zeros(len(people), np.bool_))
        return cls(rows, gallery, has_name, np.isin(people, named[counts > 1]))

    def sample(self, chosen: NDArray[np.bool_]) -> Ids:
        """Draw positions of faces to search for, of the people of the chosen (N,) faces."""
        owners = np.zeros(len(self.people.is_named), np.bool_)
        owners[self.people.owners[chosen & self.is_probe]] = True
        return self.people.sample(owners, MAX_SEARCHES, np.random.default_rng(0), self.is_probe)

    def search(
        self, embedder: Embedder, positions: Ids, rule: DecisionRule, check: Callable[[], None]
    ) -> SearchOutcomes:
        """Search for the faces at these (S,) positions, as an embedder embeds the gallery."""
        index = indexes.build(self.people.ids, embedder.embed(self.rows, TASK), embedder.metric)
        return search_gallery(index, self.people, positions, rule, check)


def measure_held_out_strangers(
    fits: Sequence[HoldoutFit],
    serving: Embedder,
    people: Ids,
    rows: Rows,
    *,
    names: Ids,
    check: Callable[[], None] = lambda: None,
) -> OpenSetCalibration | None:
    """Search for each held-out person among all other people's faces, and state their distances as `serving` has them.

    fits: each without other people; serving: the same fit on everybody
    people: (N,) number of each face's person; rows: (N, D) descriptors
    names: (N,) number of the name that the face was enrolled with, -1 if none
    check: called before each batch of searches; it may raise an exception to stop the measurement
    People whom labels joined are measured with the others, each name weighing as much as somebody else, and the others
    alone: the stricter threshold counts.
    Returns None where no held-out person is named, the embedder has not learned identity, or no fit can be compared
    with the one that serves, since too few people were learned from.
    """
    gallery = FittedGallery.from_faces(rows, people, names)
    measured = [m for fit in fits if (m := _measure_fit(fit, serving, gallery, people, check)) is not None]
    if not measured:
        return None
    strangers, distances = (np.concatenate(parts) for parts in zip(*measured, strict=True))
    is_alone = ~gallery.is_joined[strangers]
    chosen = [np.ones_like(is_alone)] + ([is_alone] if 0 < is_alone.sum() < len(is_alone) else [])
    of_names = names[strangers]
    searches = [StrangerSearches.from_distances("held-out", distances[c], of_names[c], len(people)) for c in chosen]
    return OpenSetCalibration(DecisionRule(), tuple(searches), optimistic=True)


def _measure_fit(
    fit: HoldoutFit, serving: Embedder, gallery: FittedGallery, people: Ids, check: Callable[[], None]
) -> tuple[Ids, NDArray[np.float64]] | None:
    """Return (S,) the positions of the strangers of a fit, and (S,) their distances; None as the caller states."""
    if TASK not in fit.embedder.tasks:
        return None
    strangers = gallery.sample(fit.held_out)
    if not len(strangers):
        return None
    searched = gallery.search(fit.embedder, strangers, DecisionRule(), check)
    learned = draw_impostor_pairs(np.where(fit.held_out, -1, people), COMPARED_PAIRS, 0)
    before, after = (pair_distances(e, gallery.rows, learned, TASK) for e in (fit.embedder, serving))
    distances = carry_over(searched.stranger, before, after)
    return None if distances is None else (strangers, distances)
