"""Fit the first learned model of a gallery that LBP serves, and publish it if it is measured to be better."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.db.session import snapshot as at_one_moment
from app.db.session import writing
from app.db.tables import Collection, Deployment, ModelRecord, now
from app.galleries.learned_collections import LAST_READ, READ_AT
from app.learning.plan import ComponentChoice, Plan, Source
from app.queue.jobs import enqueue
from app.queue.messages import FitFirst, Publish
from app.storage.model_cache import LBP_MODEL
from ml.evaluation.comparisons.gate_rule import judge
from ml.evaluation.comparisons.models import ModelComparison
from ml.files import hash_bytes
from workers.context import JobContext
from workers.progress import report_progress, to_json_values
from workers.training.candidate import Candidate
from workers.training.training_data import list_collection_versions, read_training_data
from workers.training.training_run import train_candidate
from workers.training.unfinished_models import remove_unfinished_models

MAX_DIM = 128
MIN_FACES, MAX_FACES = 8, 2000
FACES_PER_DIM = 4


def fit_first_model(message: FitFirst, context: JobContext) -> dict[str, Any]:
    """Train a model, and if it is better than LBP on held-out people, keep it and enqueue its publication.

    Does nothing if another model serves by now, or if an earlier run has kept a model.
    Returns {"model", "why", "report"}: model is None where none is kept, and `why` gives the reason.
    """
    resources = context.resources
    with at_one_moment(resources.database) as session:
        collection = session.get(Collection, message.collection)
        deployment = session.get(Deployment, (message.collection, "identity"))
        if collection is None or deployment is None or deployment.champion != LBP_MODEL:
            return {"model": None, "why": "the collection was deleted, or another model serves it by now"}
        name = _make_name(collection)
        if session.get(ModelRecord, name) is not None:
            return {"model": name}
        versions = {**list_collection_versions([collection]), READ_AT: now()}
        plan, version = _make_plan(collection.id), deployment.version
        limit = max(MAX_FACES, resources.settings.wpca_after_faces)
        data = read_training_data(session, plan, versions, limit)
        if len(data.faces) == limit:
            versions[LAST_READ] = data.faces[-1].pk
    remove_unfinished_models(context, name)
    if len(data.faces) < MIN_FACES:
        return {"model": None, "why": f"{len(data.faces)} faces are too few"}
    options = {"dim": min(MAX_DIM, len(data.faces) // FACES_PER_DIM), "unit": True}
    with report_progress(context) as reporter:
        candidate = train_candidate(context, plan.model_copy(update={"options": options}), data, name, reporter)
    report = to_json_values(candidate.report)
    refusal = why_not_better(report)
    if refusal is not None:
        return {"model": None, "why": refusal, "report": report}
    reason = f"the first {len(data.faces)} faces: measured to be better than {LBP_MODEL}"
    publish = Publish(  # with the version, it cannot replace a recogniser that somebody has chosen meanwhile
        collection=message.collection, tasks=("identity",), model=name, by="service", reason=reason, version=version
    )
    _keep(context, candidate, versions, report, publish)
    return {"model": name, "report": report}


def _keep(
    context: JobContext, candidate: Candidate, versions: dict[str, Any], report: dict[str, Any], publish: Publish
) -> None:
    """Save the model and its holdout model, and enqueue the publication. Raises Interrupted if another has the job."""
    resources = context.resources
    model = replace(candidate.model, provenance={**candidate.model.provenance, **versions})
    if candidate.holdout_model is not None:
        context.check_lease()
        resources.models.save(candidate.holdout_model)
    with writing(resources.database) as session:
        context.lock_job(session)
        resources.models.keep(session, model, report=report)
        session.flush()
        enqueue(session, publish)
    resources.notifier.notify("jobs")


def why_not_better(report: Mapping[str, Any]) -> str | None:
    """Return why a report does not show that the candidate is better than the serving model, or None where it does.

    It does if the interval of the gain in mean average precision lies above 0, the right person is first in no fewer
    searches, and the gate would let the candidate pass. All are measured on the held-out people.
    """
    task = report["tasks"].get("identity", {})
    difference = task.get("difference")
    if difference is None:
        return f"it could not be measured: {report.get('why_unmeasured') or 'too few people have several faces'}"
    gain, first = difference["mAP"], difference["1-call@1"]
    if gain["low"] > 0 and first["value"] >= 0:
        return _explain_refusal(task.get("comparison"))
    return (
        f"it is not measured to be better than {task.get('current_model')}: mean average precision "
        f"{gain['value']:+.3f} (95 % interval {gain['low']:+.3f} to {gain['high']:+.3f}), "
        f"right person first {first['value']:+.3f}"
    )


def _explain_refusal(measured: Mapping[str, Any] | None) -> str | None:
    """Return what the gate will say of the candidate, or None where the candidate passes."""
    if measured is None:
        return "the gate cannot judge by its report"
    verdict = judge(ModelComparison.from_dict(measured["comparison"]))
    return "; ".join([*verdict.reasons, *verdict.unclear]) or None


def _make_name(collection: Collection) -> str:
    """Make a name that depends on the collection's id and creation time."""
    identity = f"{collection.id}\0{collection.created_at!r}"
    return f"first-{hash_bytes(identity.encode())[:20]}"


def _make_plan(collection: str) -> Plan:
    """Plan a fit of principal components; subjects, where there are any, serve to measure and calibrate."""
    return Plan(
        collection=collection,
        method="wpca",
        descriptors=(ComponentChoice(name="lbp"),),
        options={},
        sources=(Source(origin="subjects"),),
        holdout=0.2,
    )
