"""From which collections a model has learned: by its own training, and by those of the models that it continued."""

from collections.abc import Mapping
from typing import Any

COLLECTIONS_CREATED_AT = "collections_created_at"
"""The part of a model's provenance that holds when each collection was created, beside `changes`."""
CONTINUED_CHANGES = "continued_changes"
"""The part of a model's provenance that holds what the models that it continued had learned from: see `changes`."""
OPEN_SET_ELSEWHERE = "open_set_elsewhere"
"""The part of a model's provenance that holds how people held out of its training score in the collections that it read
besides its own."""


def list_learned_changes(provenance: Mapping[str, Any]) -> dict[str, int]:
    """Return collection -> the change up to which a model has learned from it. Empty if no training made the model."""
    if "training" not in provenance:
        return {}
    return {**provenance.get(CONTINUED_CHANGES, {}), **provenance["changes"]}
