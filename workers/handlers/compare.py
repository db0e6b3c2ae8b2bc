"""Two models side by side on a collection."""

from dataclasses import asdict
from typing import Any

from app.queue.messages import Compare
from ml.evaluation.comparisons.gate import judge
from ml.evaluation.comparisons.models import METRICS, ModelComparison
from workers.context import JobContext
from workers.publishing.gate import not_measured
from workers.publishing.model_comparison import Measurement, measure
from workers.training.progress import plain


def run(message: Compare, context: JobContext) -> dict[str, Any]:
    """{"collection", "task", "models", "difference", "labellers", "measured_on", "gate"}; it writes nothing.

    Raises Conflict (NotMeasured), NotFound (a model), ml.Corrupt, ml.Unavailable, Interrupted.
    """
    found = measure(context, message.collection, message.task, message.models, seen_too=True)
    if found.comparison is None:
        raise not_measured(f"{message.models[0]} and {message.models[1]} cannot be compared", found.evidence)
    comparison = found.comparison
    verdict = judge(comparison)
    fair = found.evidence["unseen_by_both"]
    gate = {"passed": verdict.passed, "reasons": list(verdict.reasons), "unclear": list(verdict.unclear)}
    return {
        "collection": message.collection,
        "task": message.task,
        "models": [_shown(message, found, comparison, side) for side in (0, 1)],
        "difference": plain({n: asdict(comparison.difference[n]) for n in METRICS if n in comparison.difference}),
        "labellers": dict(comparison.labellers),
        "measured_on": found.evidence | _counts(comparison),
        "gate": gate if fair else None,
    }


def _shown(message: Compare, found: Measurement, comparison: ModelComparison, side: int) -> dict[str, Any]:
    figures = (comparison.baseline, comparison.candidate)[side]
    shown = {name: asdict(figures[name]) for name in METRICS if name in figures}
    return plain({"model": message.models[side], "measured_as": found.models[side]} | shown)  # type: ignore[no-any-return]


def _counts(comparison: ModelComparison) -> dict[str, int]:
    counts = ("people", "searches", "gallery", "pairs")
    return {f"{name}_measured": getattr(comparison, name) for name in counts}
