"""By what a search compares."""

from dataclasses import dataclass

from app.engine.served import Serving


@dataclass(frozen=True, eq=False)
class Criterion:
    """A task as one generation serves it. factor: what its distances are multiplied by."""

    serving: Serving
    factor: float = 1.0
