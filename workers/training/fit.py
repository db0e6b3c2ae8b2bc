"""Fit the embedder of a plan: without the held-out people, or on everybody."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.galleries.learned_collections import list_learned_changes
from app.storage.model_cache import ModelStore
from ml.embedder_training.fit import fit_embedder
from ml.embedder_training.holdout_fit import HoldoutFit
from ml.embedder_training.training_set import make_training_set
from ml.embedders.base import Embedder, Progress
from ml.errors import TooFewPairs
from workers.training.prepared_data import PreparedData


@dataclass(frozen=True)
class StartEmbedders:
    """What the fits continue from, None where they start anew.

    holdout: where the fit without the held-out people starts: at an embedder that has not learned from them either
    changes: what the model has learned from, see `list_learned_changes`
    """

    embedder: Embedder | None = None
    holdout: Embedder | None = None
    changes: Mapping[str, int] = field(default_factory=dict)


def load_start(models: ModelStore, model: str | None) -> StartEmbedders:
    """Load the embedder of a model and of its holdout model, if it has one. Raises NotFound (the model)."""
    if model is None:
        return StartEmbedders()
    started, holdout = models.get(model), models.find_holdout(model)
    embedder = started.embedder
    changes = list_learned_changes(started.provenance)
    return StartEmbedders(embedder, embedder if holdout is None else holdout.embedder, changes)


def fit_without_held_out(prepared: PreparedData, start: StartEmbedders, progress: Progress) -> Embedder | None:
    """Fit without the held-out people. Returns None where nobody is held out, or too little is left to learn from."""
    if not prepared.held_out.any():
        return None
    try:
        return _fit_faces(prepared, ~prepared.held_out, progress, start=start.holdout, like=None)
    except TooFewPairs:
        return None


def fit_further_holdouts(
    prepared: PreparedData, further: Sequence[NDArray[np.bool_]], progress: Progress, *, like: Embedder
) -> list[HoldoutFit]:
    """Fit without each of these (N,) held-out faces, with the choices of `like`.

    There are no such fits where too little is left to learn from in one of them.
    """
    fits = []
    for number, held_out in enumerate(further):

        def report(step: int, steps: int, values: dict[str, float], before: int = number) -> None:
            progress(before * steps + step, len(further) * steps, values)

        try:
            embedder = _fit_faces(prepared, ~held_out, report, start=None, like=like)
        except TooFewPairs:
            return []
        fits.append(HoldoutFit(embedder, held_out))
    return fits


def fit_on_everybody(
    prepared: PreparedData, start: StartEmbedders, progress: Progress, *, like: Embedder | None
) -> Embedder:
    """Fit on all faces. `like` and the errors raised are those of `fit_embedder`."""
    everybody = np.ones(len(prepared.rows), np.bool_)
    return _fit_faces(prepared, everybody, progress, start=start.embedder, like=like)


def _fit_faces(
    prepared: PreparedData,
    kept: NDArray[np.bool_],
    progress: Progress,
    *,
    start: Embedder | None,
    like: Embedder | None,
) -> Embedder:
    plan, data = prepared.plan, prepared.data
    blocks = plan.recipe.blocks
    training_set = make_training_set(data.tasks, data.people, prepared.rows, kept, blocks=blocks, seed=plan.seed)
    return fit_embedder(plan.method, plan.options, training_set, progress, start=start, like=like)
