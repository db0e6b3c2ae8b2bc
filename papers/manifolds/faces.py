"""001, Tables 3 to 5 with people in place of birds, cars and products: heads on a CNN that stays as it is."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from app.cli.export import training_set
from ml import registry
from ml.embedders.base import Progress
from ml.evaluation.protocols import held_out_people
from ml.evaluation.report import rank_protocol
from ml.evaluation.retrieval import average_precisions
from ml.metric_learning.principal_axes import fit_principal_axes
from ml.types import Ids, Rows
from papers.harness.lab import Lab
from papers.harness.plan import Found, Work
from papers.manifolds.descent import Lesson, sound, swept, teach
from papers.manifolds.heads import RATES, Plan
from papers.manifolds.people import sides, told_apart

FEATURES = "mobilefacenet"
MARGIN, BATCH, EACH, FINE = 0.5, 64, 2, 1e-3
HELD = 0.2


def plan(head: str, rate: float, steps: int, seed: int = 0) -> Plan:
    return Plan(head, rate, steps, MARGIN, FINE, BATCH, EACH, seed)


def choice(lab: Lab, head: str, dim: int, steps: int, least: int) -> Work:
    """Facts: `errors`, 1 - mAP by rate, of a fifth of CelebA10k's people, without whom the others teach."""

    def run(folder: Path, progress: Progress) -> Found:
        rows, people = _teachers(lab, least)
        asked = held_out_people(people, HELD)
        own, whose = rows[asked.training], people[asked.training]

        def error(rate: float) -> float:
            z, facts, _ = _headed(own, whose, rows, dim, plan(head, rate, steps), progress)
            sound(facts)
            return 1 - float(np.nanmean(average_precisions(rank_protocol(z, asked))))

        return {"errors": swept(head, error)}, {}

    key = {**_key("frozen, inner", least), "head": head, "rates": list(RATES[head]), "dim": dim, "steps": steps}
    return Work(f"{FEATURES}, {dim}, the rate of {head}", key, 0.003 * steps * len(RATES[head]), run)


def learned(lab: Lab, dim: int, asked: Plan, least: int) -> Work:
    """See `told_apart`; facts also hold what `teach` says, arrays also `matrix`."""

    def run(folder: Path, progress: Progress) -> Found:
        told = sides(lab.photos, least)
        rows, people = _teachers(lab, least)
        z, like, matrix = _headed(rows, people, lab.photos.rows("lfw", FEATURES)[told.asked], dim, asked, progress)
        facts, arrays = told_apart(z, told)
        return facts | like, arrays | {"matrix": matrix}

    key = {**_key("frozen", least), "dim": dim, "plan": asdict(asked)}
    return Work(f"{FEATURES}, {dim}, {asked.head}, seed {asked.seed}", key, 15 + 0.003 * asked.steps, run)


def untaught(lab: Lab, dim: int, least: int) -> Work:
    """The feature's leading principal axes, where the heads start; dim 0: the feature itself."""

    def run(folder: Path, progress: Progress) -> Found:
        asked = sides(lab.photos, least)
        tested = lab.photos.rows("lfw", FEATURES)[asked.asked]
        rows, _ = _teachers(lab, least)
        return told_apart(tested @ start(torch.from_numpy(rows), dim).numpy() if dim else tested, asked)

    return Work(f"{FEATURES}, {dim or 'itself'}", {**_key("untaught", least), "dim": dim}, 15, run)


def served(lab: Lab, method: str, options: Mapping[str, Any], dim: int, least: int, seed: int) -> Work:
    """An embedder as the service trains it: people held out choose its start, its length and its steps."""

    def run(folder: Path, progress: Progress) -> Found:
        asked = sides(lab.photos, least)
        rows, people = _teachers(lab, least)
        embedder = registry.build("embedders", method, dim=dim, seed=seed, **options)
        embedder.fit(training_set(rows, [f"{who}/" for who in people]), progress=progress)
        facts, arrays = told_apart(embedder.embed(lab.photos.rows("lfw", FEATURES)[asked.asked]), asked)
        return facts | {"notes": dict(embedder.notes)}, arrays

    key = {**_key("served", least), "method": method, "options": dict(options), "dim": dim, "seed": seed}
    return Work(f"{FEATURES}, {dim}, {method} as served, seed {seed}", key, 40, run)


def _key(what: str, least: int) -> dict[str, Any]:
    return {"paper": "001", "what": f"faces, {what}", "least": least}


def _teachers(lab: Lab, least: int) -> tuple[Rows, Ids]:
    told = sides(lab.photos, least)
    return lab.photos.rows("celeba", FEATURES)[told.taught], told.people


def start(rows: Tensor, dim: int) -> Tensor:
    """(n, dim), the leading principal axes."""
    return fit_principal_axes(rows, dim)[0].T.contiguous()


def _headed(
    rows: Rows, people: Ids, others: Rows, dim: int, asked: Plan, progress: Progress
) -> tuple[Rows, dict[str, Any], Rows]:
    """What a head taught by these people makes of other rows; what it is like; its matrix."""
    seen = torch.from_numpy(rows)
    lesson = Lesson(people, lambda places, _: seen[torch.from_numpy(places)])
    layer, like = teach(lesson, nn.Identity(), start(seen, dim), asked, progress)
    with torch.no_grad():
        return layer(torch.from_numpy(others)).numpy(), like, layer.matrix.numpy()
