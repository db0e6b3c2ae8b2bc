"""The result of a training: a candidate model with its holdout model and its report."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.galleries.learned_collections import CONTINUED_CHANGES, OPEN_SET_ELSEWHERE
from app.storage.model_cache import HOLDOUT_SUFFIX
from ml.embedder_training.calibrations import TaskCalibrations
from ml.embedders.base import Embedder
from ml.model import Model
from ml.types import Spec
from workers.training.exposure import HELD_OUT_FACES
from workers.training.measurement import CandidateMeasurement
from workers.training.prepared_data import PreparedData
from workers.training.report import make_unmeasured_report


@dataclass(frozen=True, eq=False)
class Candidate:
    """model: fitted on everybody; holdout_model: the same fit without the held-out people, None where nobody was.

    The next training is compared with the holdout model of the serving model, since the serving model itself has
    learned from those people.
    """

    model: Model
    holdout_model: Model | None
    report: dict[str, Any]


def make_candidate(
    name: str,
    prepared: PreparedData,
    embedder: Embedder,
    holdout_embedder: Embedder | None,
    calibrations: TaskCalibrations,
    measurement: CandidateMeasurement | None,
    continued_changes: Mapping[str, int],
) -> Candidate:
    """Make the models of a candidate, and complete its report.

    embedder: fitted on everybody; holdout_embedder: without the held-out people
    measurement: of the holdout embedder, None where there is none
    continued_changes: what the model that it continues has learned from
    """
    plan, strangers = prepared.plan, measurement.strangers if measurement else {}
    measured_report = measurement.report if measurement else make_unmeasured_report(prepared)
    report = measured_report | {"choice": embedder.notes.get("choice")}
    model_facts = {
        "made": "trained",
        "collection": plan.collection,
        "plan": plan.model_dump(mode="json", by_alias=True),
        "by_held_out": list(calibrations.by_held_out),
        "open_set": {"identity": strangers[plan.collection].to_dict()} if plan.collection in strangers else {},
        OPEN_SET_ELSEWHERE: {name: of.to_dict() for name, of in strangers.items() if name != plan.collection},
        **({CONTINUED_CHANGES: dict(continued_changes)} if continued_changes else {}),
    }
    index = Spec(plan.index.name, dict(plan.index.options)) if plan.index else None
    model = Model(name, plan.recipe, plan.method, embedder, calibrations.by_task, model_facts, index)
    if holdout_embedder is None:
        return Candidate(model, None, report)
    held_out_faces = [face.pk for face in prepared.data.select_faces(prepared.held_out)]
    share = min([plan.holdout, *prepared.data.holdout_draw[prepared.known_to_start].tolist()])
    holdout_facts = {"holdout": share, HELD_OUT_FACES: held_out_faces}
    holdout_name = name + HOLDOUT_SUFFIX
    holdout_model = Model(holdout_name, plan.recipe, plan.method, holdout_embedder, calibrations.holdout, holdout_facts)
    return Candidate(model, holdout_model, report)
