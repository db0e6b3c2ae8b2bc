"""Fit the first learned model of a gallery that LBP serves, and publish it if it is measured to be better."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.db.session import snapshot as at_one_moment
from app.db.session import writing
from app.db.tables import Collection, Deployment, ModelRecord
from app.learning.plan import Named, Plan, Source
from app.queue.jobs import enqueue
from app.queue.messages import FitFirst, Publish
from app.storage.model_cache import FIRST
from ml.evaluation.comparisons.gate import judge
from ml.evaluation.comparisons.models import ModelComparison
from ml.model import save_model
from workers.context import JobContext
from workers.training import training_data
from workers.training.candidate import learn
from workers.training.progress import plain, telling

WIDEST = 128
FACES = 2000
FEWEST = 8


def run(message: FitFirst, context: JobContext) -> dict[str, Any]:
    """Keeps the model and writes down its publication, if it is better than what serves on people held out of it.

    Does nothing where something else than LBP serves by now, or where it was done already. A model that could not be
    measured, or is not better, is not kept.
    """
    resources = context.resources
    with at_one_moment(resources.database) as session:
        collection = session.get(Collection, message.collection)
        deployment = session.get(Deployment, (message.collection, "identity"))
        if collection is None or deployment is None or deployment.champion != FIRST:
            return {"model": None, "why": "the collection is gone, or is served by something else by now"}
        name = _name(collection)
        if session.get(ModelRecord, name) is not None:
            return {"model": name}
        at = {"changes": {collection.id: collection.change}, "labels": {}}
        plan, version = _plan(collection.id), deployment.version
        taken = training_data.read(session, plan, at, max(FACES, resources.settings.wpca_after_faces))
    if len(taken.faces) < FEWEST:
        return {"model": None, "why": f"{len(taken.faces)} faces are too few"}
    plan = plan.model_copy(update={"options": {"dim": min(WIDEST, len(taken.faces) // 4), "unit": True}})
    with telling(context) as told:
        candidate = learn(context, plan, taken, name, told)
    report = plain(candidate.report)
    refusal = why_not_better(report)
    if refusal is not None:
        return {"model": None, "why": refusal, "report": report}
    made = replace(candidate.generation, facts={**candidate.generation.facts, "changes": at["changes"]})
    if candidate.twin is not None:
        save_model(candidate.twin, resources.generations.folder)
    reason = f"the first {len(taken.faces)} faces: measured to be better than {FIRST}"
    publish = Publish(  # not where somebody chose a recogniser meanwhile: the version tells
        collection=message.collection, tasks=("identity",), model=name, by="service", reason=reason, version=version
    )
    with writing(resources.database) as session:
        resources.generations.keep(session, made, report=report)
        session.flush()
        enqueue(session, publish)
    resources.notifier.notify("jobs")
    return {"model": name, "report": report}


def why_not_better(report: Mapping[str, Any]) -> str | None:
    """Why a candidate's report does not show that it is better than what serves; None where it does.

    It does where the interval of the gain in mean average precision, over the people held out, lies above 0, the right
    person is not first in fewer searches, and the gate would let it pass.
    """
    told = report["tasks"].get("identity", {})
    difference = told.get("difference")
    if difference is None:
        return f"it could not be measured: {report.get('why_unmeasured') or 'too few people have several faces'}"
    gain, first = difference["mAP"], difference["1-call@1"]
    if gain["low"] > 0 and first["value"] >= 0:
        return _refused(told.get("comparison"))
    return (
        f"it is not measured to be better than {told.get('current_model')}: mean average precision "
        f"{gain['value']:+.3f} (95 % interval {gain['low']:+.3f} to {gain['high']:+.3f}), "
        f"right person first {first['value']:+.3f}"
    )


def _refused(measured: Mapping[str, Any] | None) -> str | None:
    """What the gate will say of the candidate; None where it lets it pass."""
    if measured is None:
        return "the gate cannot judge by its report"
    verdict = judge(ModelComparison.from_dict(measured["comparison"]))
    return "; ".join([*verdict.reasons, *verdict.unclear]) or None


def _name(collection: Collection) -> str:
    """One for each collection, and another for one of the same id that was made anew."""
    told = f"{collection.id}\0{collection.created_at!r}"
    return f"first-{hashlib.sha256(told.encode()).hexdigest()[:20]}"


def _plan(collection: str) -> Plan:
    """Principal components; the subjects, where there are any, serve to measure and calibrate."""
    return Plan(
        collection=collection,
        method="wpca",
        descriptors=(Named(name="lbp"),),
        options={},
        sources=(Source(origin="subjects"),),
        holdout=0.2,
    )
