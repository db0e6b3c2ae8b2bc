"""One run of a training, from its data to a candidate model."""

from app.learning.plan import Plan
from ml.embedder_training.calibrations import calibrate_tasks
from workers.context import JobContext
from workers.description import describe_faces
from workers.progress import ProgressReporter
from workers.training.candidate import Candidate, make_candidate
from workers.training.fit import fit_further_holdouts, fit_on_everybody, fit_without_held_out, load_start
from workers.training.measurement import measure_candidate
from workers.training.prepared_data import PreparedData
from workers.training.split import choose_further_holdouts, choose_held_out_faces
from workers.training.training_data import TrainingData
from workers.training.vocabularies import learn_vocabularies


def train_candidate(
    context: JobContext, plan: Plan, data: TrainingData, name: str, reporter: ProgressReporter
) -> Candidate:
    """Hold people out, describe the faces, fit, fit again on everybody, and measure on the held-out people.

    In a small collection, further fits hold out others, so that enough people are strangers for a threshold. There are
    none where the training goes on from a model, which may have learned from them.

    Raises TooFewPairs, NotFound (the model to start from is missing), CropsDamaged, Interrupted.
    """
    held_out = choose_held_out_faces(data, plan.holdout)
    learned_faces = data.select_faces(~held_out)
    plan = learn_vocabularies(context, plan, learned_faces, reporter.phase("vocabulary", 0, 20))
    rows = describe_faces(context, plan.recipe, data.faces, reporter.phase("describe", 20, 200))
    prepared = PreparedData(plan, data, held_out, rows)
    start = load_start(context.resources.models, plan.start_from)
    further = [] if plan.start_from else choose_further_holdouts(data, held_out, plan.collection)
    fit_end, refit_end = (450, 700) if further else (580, 960)
    holdout_embedder = fit_without_held_out(prepared, start, reporter.phase("fit", 200, fit_end))
    progress = reporter.phase("refit", fit_end, refit_end) if holdout_embedder else reporter.phase("fit", 200, 1000)
    embedder = fit_on_everybody(prepared, start, progress, like=holdout_embedder)
    if holdout_embedder is None:
        measurement, calibrations = None, calibrate_tasks(embedder, data.tasks, data.people, rows)
    else:
        report_crossed = reporter.phase("cross-fit", refit_end, 960)
        others = fit_further_holdouts(prepared, further, report_crossed, like=holdout_embedder)
        report_measured = reporter.phase("measure", 960, 1000)
        measurement = measure_candidate(context, prepared, holdout_embedder, embedder, others)
        calibrations = measurement.calibrations
        report_measured(1, 1, {})
    return make_candidate(name, prepared, embedder, holdout_embedder, calibrations, measurement, start.changes)
