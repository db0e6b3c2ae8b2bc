"""Compare two models on a collection."""

from dataclasses import asdict
from typing import Any

from app.queue.messages import Compare
from ml.evaluation.comparisons.gate_rule import judge
from ml.evaluation.comparisons.models import METRICS, ModelComparison
from workers.context import JobContext
from workers.progress import to_json_values
from workers.publishing.gate import make_not_measured
from workers.publishing.model_comparison import ModelMeasurement, measure_models


def compare_models(message: Compare, context: JobContext) -> dict[str, Any]:
    """Return {"collection", "task", "models", "difference", "labellers", "measured_on", "gate"}. Nothing is stored.

    Raises Conflict (NotMeasured), NotFound (a model), ml.Corrupt, ml.Unavailable, Interrupted.
    """
    measurement = measure_models(context, message.collection, message.task, message.models, allow_seen=True)
    if measurement.comparison is None:
        raise make_not_measured(f"{message.models[0]} and {message.models[1]} cannot be compared", measurement.evidence)
    comparison = measurement.comparison
    verdict = judge(comparison)
    fair = measurement.evidence["unseen_by_both"]
    gate = {"passed": verdict.passed, "reasons": list(verdict.reasons), "unclear": list(verdict.unclear)}
    return {
        "collection": message.collection,
        "task": message.task,
        "models": [_make_figures(message, measurement, comparison, side) for side in (0, 1)],
        "difference": to_json_values(
            {n: asdict(comparison.difference[n]) for n in METRICS if n in comparison.difference}
        ),
        "labellers": dict(comparison.labellers),
        "measured_on": measurement.evidence | _count_measured(comparison),
        "gate": gate if fair else None,
    }


def _make_figures(
    message: Compare, measurement: ModelMeasurement, comparison: ModelComparison, side: int
) -> dict[str, Any]:
    figures = (comparison.baseline, comparison.candidate)[side]
    shown = {name: asdict(figures[name]) for name in METRICS if name in figures}
    return to_json_values({"model": message.models[side], "measured_as": measurement.models[side]} | shown)  # type: ignore[no-any-return]


def _count_measured(comparison: ModelComparison) -> dict[str, int]:
    counts = ("people", "searches", "gallery", "pairs")
    return {f"{name}_measured": getattr(comparison, name) for name in counts}
