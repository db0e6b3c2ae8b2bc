"""From a snapshot to a candidate: fit without the people held out, measure, fit once more with everybody."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.db.session import reading
from app.db.tables import Deployment
from app.errors import NotFound
from app.learning.plan import Plan
from ml.calibration import Calibration
from ml.embedders.base import Embedder
from ml.errors import TooFewPairs
from ml.evaluation.comparisons.models import compare_rankings
from ml.identification.open_set import OpenSetCalibration
from ml.model import Model, Recipe
from ml.types import Rows
from workers.context import JobContext
from workers.description import describe
from workers.publishing.exposure import HELD_OUT_FACES, HOLDOUT_SUFFIX, exposure, learned_from
from workers.training import candidate_report, embedder_fit, vocabularies
from workers.training.candidate_report import Measured, Trial
from workers.training.face_embeddings import Bench, Contestant
from workers.training.progress import Telling
from workers.training.stranger_searches import measure_held_out_strangers
from workers.training.training_data import CREATED_AT, Facts, Snapshot, Told

HELD_OUT = HOLDOUT_SUFFIX
"""Ends the name of a model's twin, which is kept beside it: the same, learned without the people held out. The next
training is compared with the twin of the model that serves, since that model itself knows those people."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """generation: learned from everybody; twin: without the people held out, None where nobody was."""

    generation: Model
    twin: Model | None
    report: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Serving:
    """The model that a candidate is compared with. seen: how many of the held-out people it may have learned from."""

    model: str
    contestant: Contestant
    seen: int


def learn(context: JobContext, plan: Plan, taken: Snapshot, name: str, told: Telling) -> Candidate:
    """Everything between reading and writing the tables. Raises TooFewPairs, NotFound (a crop is gone), Interrupted."""
    held = embedder_fit.held_out(taken, plan.holdout)
    unseen = [face for face, out in zip(taken.faces, held, strict=True) if not out]
    plan = vocabularies.settled(context, plan, unseen, told.phase("vocabulary", 0, 20))
    recipe, tell = plan.recipe, told.phase("describe", 20, 200)
    rows = describe(context.resources, recipe, taken.faces, context, lambda done, total: tell(done, total, {}))
    before, untold = _started(context, plan.start_from)
    first = _without(held, plan, taken, rows, told, untold) if held.any() else None
    everything = embedder_fit.training_set(plan, taken, rows, np.ones(len(rows), np.bool_))
    if first is None:
        only = embedder_fit.fit(plan, everything, told.phase("fit", 200, 1000), before=before)
        known = _known(
            {f.task: candidate_report.calibrate_on_learned(only, rows, f, taken.people) for f in _served(taken, only)}
        )
        return Candidate(_made(plan, recipe, name, only, known, []), None, _unmeasured(plan, taken, held))
    report, known, by_held_out = _measured(context, plan, taken, rows, held, first)
    strangers = measure_held_out_strangers(context, first, rows, taken, held)
    last = embedder_fit.fit(plan, everything, told.phase("refit", 620, 1000), before=before, like=first)
    without = [face.pk for face, out in zip(taken.faces, held, strict=True) if out]
    left_out = {"holdout": plan.holdout, HELD_OUT_FACES: without}
    twin = Model(name + HELD_OUT, recipe, plan.method, first, known, left_out)
    return Candidate(_made(plan, recipe, name, last, known, by_held_out, strangers), twin, report)


def _started(context: JobContext, model: str | None) -> tuple[Embedder | None, Embedder | None]:
    """What to go on from, and its twin, which does not know the people held out. Raises NotFound."""
    if model is None:
        return None, None
    generations = context.resources.generations
    before = generations.get(model).embedder
    try:
        return before, generations.get(model + HELD_OUT).embedder
    except NotFound:
        return before, before


def _without(
    held: NDArray[np.bool_], plan: Plan, taken: Snapshot, rows: Rows, told: Telling, before: Embedder | None
) -> Embedder | None:
    """Learned without these; None where what is left is too little to learn from."""
    left = embedder_fit.training_set(plan, taken, rows, ~held)
    try:
        return embedder_fit.fit(plan, left, told.phase("fit", 200, 580), before=before)
    except TooFewPairs:
        return None


def _made(
    plan: Plan,
    recipe: Recipe,
    name: str,
    embedder: Embedder,
    known: dict[str, Calibration],
    by_held_out: list[str],
    strangers: OpenSetCalibration | None = None,
) -> Model:
    """by_held_out: tasks whose calibration is of people who were not learned from; strangers: how such people score."""
    facts = {"made": "trained", "collection": plan.collection, "plan": plan.model_dump(mode="json", by_alias=True)}
    facts |= {"by_held_out": by_held_out, "open_set": {"identity": strangers.to_dict()} if strangers else {}}
    return Model(name, recipe, plan.method, embedder, known, facts)


def _served(taken: Snapshot, embedder: Embedder) -> list[Facts]:
    return [f for f in taken.tasks if f.task in embedder.tasks]


def _known(calibrations: dict[str, Calibration | None]) -> dict[str, Calibration]:
    return {task: c for task, c in calibrations.items() if c is not None}


def _unmeasured(plan: Plan, taken: Snapshot, held: NDArray[np.bool_]) -> dict[str, Any]:
    why = "fewer than four people have what a search needs"
    if held.any():
        why = "without the people held out, too little is left to learn from"
    why = why if plan.holdout else "nobody was to be held out"
    return _summary(plan, taken, 0) | {"refit": False, "why_unmeasured": why}


def _summary(plan: Plan, taken: Snapshot, people: int) -> dict[str, Any]:
    told = {"holdout": plan.holdout, "held_out_people": people, "faces": len(taken.faces), "task": plan.tasks[0]}
    return told | {"distractors": len(taken.distractors), "candidate": None, "current": None, "tasks": {}}


def _measured(
    context: JobContext, plan: Plan, taken: Snapshot, rows: Rows, held: NDArray[np.bool_], first: Embedder
) -> tuple[dict[str, Any], dict[str, Calibration], list[str]]:
    """The report, whose `candidate` and `current` are those of the main task; `tasks` has all. Then the calibrations,
    and of which tasks they are of people held out: where there were too few, all that is known must do."""

    def described(recipe: Recipe, faces: Sequence[Told]) -> Rows:
        return describe(context.resources, recipe, faces, context)

    labelled = [f.pairs.ravel() for f in taken.tasks]
    places = np.unique(np.concatenate([np.flatnonzero(held), *labelled]))
    bench = Bench(taken, places, plan.recipe, rows, described)
    report = _summary(plan, taken, len(np.unique(taken.people[held]))) | {"refit": True, "notes": first.notes}
    calibrations, by_held_out = dict[str, Calibration | None](), list[str]()
    for facts in _served(taken, first):
        context.check()
        trial = Trial(bench, facts, held, f"held-out-{plan.holdout:g}")
        now = candidate_report.measure(trial, Contestant(plan.recipe, first))
        serving = _serving(context, plan, taken, held, facts.task)
        before = candidate_report.measure(trial, serving.contestant) if serving else None
        told = candidate_report.report(trial, now, before)
        told |= {"current_model": serving.model, "current_has_seen": serving.seen} if serving else {}
        told["comparison"] = _comparison(plan, taken, facts, now, before, serving)
        report["tasks"][facts.task] = told
        calibrations[facts.task] = candidate_report.calibrate(now)
        if calibrations[facts.task]:
            by_held_out.append(facts.task)
        else:
            calibrations[facts.task] = candidate_report.calibrate_on_learned(first, rows, facts, taken.people)
    main = report["tasks"].get(plan.tasks[0], {})
    report |= {key: main.get(key) for key in ("candidate", "current", "current_model")}
    return report, _known(calibrations), by_held_out


def _comparison(
    plan: Plan, taken: Snapshot, facts: Facts, now: Measured, before: Measured | None, serving: Serving | None
) -> dict[str, Any] | None:
    """What the gate goes by when the model is published, None where it must measure by itself: where the people held
    out are not of this collection alone, or the model that serves has learned from some of them."""
    ranked = now.ranked is not None and (before is None or before.ranked is not None)
    if not ranked or len(plan.collections) > 1 or (serving is not None and serving.seen):
        return None
    assert now.ranked is not None
    found = compare_rankings(
        before.ranked if before else None,
        now.ranked,
        open_set=facts.task == "identity",
        searches=(before.searches if before else None, now.searches),
    )
    return {
        "collection": plan.collection,
        "collection_created_at": taken.taken[CREATED_AT][plan.collection],
        "champion": serving.model if serving else None,
        "faces": len(taken.faces),
        "comparison": found.to_dict(),
    }


def _serving(context: JobContext, plan: Plan, taken: Snapshot, held: NDArray[np.bool_], task: str) -> Serving | None:
    """The champion of the task; its twin in its stead, if it has learned from these collections and has one."""
    with reading(context.resources.database) as session:
        deployment = session.get(Deployment, (plan.collection, task))
        if deployment is None:
            return None
        champion = deployment.champion
        exposed = exposure(session, context.resources.generations, champion, plan.collections)
        known = learned_from(session, exposed, taken)
    seen = len(np.unique(taken.people[known & held]))
    return Serving(champion, Contestant(exposed.measured_as.recipe, exposed.measured_as.embedder), seen)
