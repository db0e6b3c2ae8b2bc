"""Fit an embedder by the name of its method."""

from collections.abc import Mapping
from typing import Any, cast

from ml import registry
from ml.embedders.base import Embedder, Progress, TrainingSet


def fit_embedder(
    method: str,
    options: Mapping[str, Any],
    data: TrainingSet,
    progress: Progress,
    *,
    start: Embedder | None = None,
    like: Embedder | None = None,
) -> Embedder:
    """Fit a method with its options, from `start` where there is one.

    like: an embedder fitted without the held-out people, whose choices (such as the number of steps) are repeated
    Raises TooFewPairs, CannotGoOn, NotFinite, WrongShape, and whatever the progress raises.
    """
    repeated = like.refit_options() if like else {}
    embedder = cast(Embedder, registry.build("embedders", method, **{**options, **repeated}))
    if start is not None:
        embedder.start_from(start)
    embedder.fit(data, progress=progress)
    if like is not None:
        embedder.repeat_choice(like)
    return embedder
