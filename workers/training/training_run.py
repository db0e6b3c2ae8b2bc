"""One run of a training, from its data to a candidate model."""

from app.learning.plan import Plan
from ml.embedder_training.calibrations import calibrate_tasks
from ml.embedder_training.holdout_fit import HoldoutFit
from workers.context import JobContext
from workers.description import describe_faces
from workers.progress import ProgressReporter
from workers.training.candidate import Candidate, make_candidate
from workers.training.fit import fit_further_holdouts, fit_on_everybody, fit_without_held_out, load_start
from workers.training.held_out_people import hold_people_out, leave_out_recognised
from workers.training.measurement import count_needed_strangers, measure_candidate, measure_strangers
from workers.training.prepared_data import PreparedData
from workers.training.split import choose_further_holdouts
from workers.training.training_data import TrainingData
from workers.training.vocabularies import learn_vocabularies


def train_candidate(
    context: JobContext, plan: Plan, data: TrainingData, name: str, reporter: ProgressReporter
) -> Candidate:
    """Hold people out, describe the faces, fit, fit again on everybody, and measure on the held-out people.

    Where too few people are strangers for a threshold, further fits hold out others. There are none where the training
    goes on from a model, which may have learned from them; nor are people held out whom that model may know.

    Raises TooFewPairs, NotFound (the model to start from is missing), CropsDamaged, Interrupted.
    """
    people_held_out = hold_people_out(context, plan, data)
    learned_faces = data.select_faces(~people_held_out.faces)
    plan = learn_vocabularies(context, plan, learned_faces, reporter.phase("vocabulary", 0, 20))
    rows = describe_faces(context, plan.recipe, data.faces, reporter.phase("describe", 20, 200))
    people_held_out = leave_out_recognised(context, people_held_out, data, rows)
    held_out = people_held_out.faces
    prepared = PreparedData(plan, data, held_out, rows, people_held_out.known_to_start)
    start = load_start(context.resources.models, plan.start_from)
    holdout_embedder = fit_without_held_out(prepared, start, reporter.phase("fit", 200, 500))
    progress = reporter.phase("refit", 500, 800) if holdout_embedder else reporter.phase("fit", 200, 1000)
    embedder = fit_on_everybody(prepared, start, progress, like=holdout_embedder)
    if holdout_embedder is None:
        measurement, calibrations = None, calibrate_tasks(embedder, data.tasks, data.people, rows)
    else:
        fits = [HoldoutFit(holdout_embedder, held_out)]
        strangers = measure_strangers(context, prepared, fits, embedder)
        own_first = sorted(data.collections, key=lambda name: name != plan.collection)
        needed = {} if plan.start_from else {c: count_needed_strangers(strangers.get(c)) for c in own_first}
        further = choose_further_holdouts(data, held_out, needed)
        if further:
            report_further = reporter.phase("cross-fit", 800, 960)
            fits += fit_further_holdouts(prepared, further, report_further, like=holdout_embedder)
            strangers = measure_strangers(context, prepared, fits, embedder)
        report_measured = reporter.phase("measure", 960, 1000)
        measurement = measure_candidate(context, prepared, holdout_embedder, embedder, strangers)
        calibrations = measurement.calibrations
        report_measured(1, 1, {})
    return make_candidate(name, prepared, embedder, holdout_embedder, calibrations, measurement, start.changes)
