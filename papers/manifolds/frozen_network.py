"""001, Tables 3 to 5 with people in place of birds, cars and products: heads on a frozen CNN as it is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from app.cli.datasets.export import build_training_set
from ml import registry
from ml.embedders.base import Progress
from ml.evaluation.protocols import held_out_people
from ml.evaluation.report import rank_protocol
from ml.evaluation.retrieval import average_precisions
from ml.metric_learning.principal_axes import fit_principal_axes
from ml.types import Ids, Rows
from papers.harness.run_context import RunContext
from papers.harness.table_types import Computation, ComputationOutput
from papers.manifolds.head_layers import RATES, HeadTraining
from papers.manifolds.head_training import HeadTrainingData, check_converged, sweep_rates, train_head
from papers.manifolds.people_split import measure_separation, split_people

FEATURES = "mobilefacenet"
MARGIN, BATCH, PHOTOS_PER_PERSON, FINE_RATE = 0.5, 64, 2, 1e-3
HELD_OUT_SHARE = 0.2


def plan_training(head: str, rate: float, steps: int, seed: int = 0) -> HeadTraining:
    return HeadTraining(head, rate, steps, MARGIN, FINE_RATE, BATCH, PHOTOS_PER_PERSON, seed)


def make_choice_computation(context: RunContext, head: str, dim: int, steps: int, min_photos: int) -> Computation:
    """Choose the rate. Record: `errors`, 1 - mAP by rate, of a fifth of CelebA10k's people, who are held out."""

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        rows, people = _teachers(context, min_photos)
        split = held_out_people(people, HELD_OUT_SHARE)
        own, own_people = rows[split.training], people[split.training]

        def error(rate: float) -> float:
            z, record, _ = _headed(own, own_people, rows, dim, plan_training(head, rate, steps), progress)
            check_converged(record)
            return 1 - float(np.nanmean(average_precisions(rank_protocol(z, split))))

        return {"errors": sweep_rates(head, error)}, {}

    key = {**_key("frozen, inner", min_photos), "head": head, "rates": list(RATES[head]), "dim": dim, "steps": steps}
    return Computation(f"{FEATURES}, {dim}, the rate of {head}", key, 0.003 * steps * len(RATES[head]), run)


def make_head_computation(context: RunContext, dim: int, training: HeadTraining, min_photos: int) -> Computation:
    """Train a head and measure it. Record: see `measure_separation` and `train_head`. Arrays: also `matrix`."""

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        split = split_people(context.photos, min_photos)
        rows, people = _teachers(context, min_photos)
        z, like, matrix = _headed(
            rows, people, context.photos.rows("lfw", FEATURES)[split.queries], dim, training, progress
        )
        record, arrays = measure_separation(z, split)
        return record | like, arrays | {"matrix": matrix}

    key = {**_key("frozen", min_photos), "dim": dim, "plan": training.key}
    return Computation(
        f"{FEATURES}, {dim}, {training.head}, seed {training.seed}", key, 15 + 0.003 * training.steps, run
    )


def make_axes_computation(context: RunContext, dim: int, min_photos: int) -> Computation:
    """Measure the leading principal axes of the feature, where the heads start; dim 0: the feature itself."""

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        split = split_people(context.photos, min_photos)
        tested = context.photos.rows("lfw", FEATURES)[split.queries]
        rows, _ = _teachers(context, min_photos)
        return measure_separation(
            tested @ find_principal_axes(torch.from_numpy(rows), dim).numpy() if dim else tested, split
        )

    return Computation(f"{FEATURES}, {dim or 'itself'}", {**_key("untaught", min_photos), "dim": dim}, 15, run)


def make_service_computation(
    context: RunContext, method: str, options: Mapping[str, Any], dim: int, min_photos: int, seed: int
) -> Computation:
    """Train an embedder as the service does: held-out people choose its start, its length and its steps."""

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        split = split_people(context.photos, min_photos)
        rows, people = _teachers(context, min_photos)
        embedder = registry.build("embedders", method, dim=dim, seed=seed, **options)
        embedder.fit(build_training_set(rows, [f"{who}/" for who in people]), progress=progress)
        record, arrays = measure_separation(embedder.embed(context.photos.rows("lfw", FEATURES)[split.queries]), split)
        return record | {"notes": dict(embedder.notes)}, arrays

    key = {**_key("served", min_photos), "method": method, "options": dict(options), "dim": dim, "seed": seed}
    return Computation(f"{FEATURES}, {dim}, {method} as served, seed {seed}", key, 40, run)


def _key(what: str, min_photos: int) -> dict[str, Any]:
    return {"paper": "001", "what": f"faces, {what}", "least": min_photos}


def _teachers(context: RunContext, min_photos: int) -> tuple[Rows, Ids]:
    split = split_people(context.photos, min_photos)
    return context.photos.rows("celeba", FEATURES)[split.taught], split.people


def find_principal_axes(rows: Tensor, dim: int) -> Tensor:
    """Return the leading principal axes: (n, dim)."""
    return fit_principal_axes(rows, dim)[0].T.contiguous()


def _headed(
    rows: Rows, people: Ids, others: Rows, dim: int, training: HeadTraining, progress: Progress
) -> tuple[Rows, dict[str, Any], Rows]:
    """Train a head on these people. Returns the embeddings of other rows, the record of the head, and its matrix."""
    seen = torch.from_numpy(rows)
    lesson = HeadTrainingData(people, lambda indices, _: seen[torch.from_numpy(indices)])
    layer, like = train_head(lesson, nn.Identity(), find_principal_axes(seen, dim), training, progress)
    with torch.no_grad():
        return layer(torch.from_numpy(others)).numpy(), like, layer.matrix.numpy()
