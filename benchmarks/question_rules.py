"""Compare rules for choosing the pairs to label: mean average precision of people of whom nothing was learned.

    python -m benchmarks.question_rules --data DATA --cache DIR [--set lfw|celeba ...] [--rule NAME ...] [--seeds 10]
        [--sizes 50,200,1000] [--axes 512]

Half of the people are labelled, truthfully and without names, and searched for are the others: LFW by its ten lists
`disjoint-*`, CelebA10k by ten random halves. The first model is WPCA of the first 2,000 faces; after each of the sizes
LDML with 128 numbers is fitted to the labels so far, and chooses the next questions. Descriptors are LBP in the leading
principal axes of the *other* set; `--axes 0` keeps all 9,860 numbers.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ml.active_learning import CandidatePairs, PairAnswers, PairSuggestions, find_candidates
from ml.active_learning.pair_choice import select_pairs
from ml.embedders.base import Embedder, TrainingSet
from ml.embedders.ldml import Ldml
from ml.embedders.wpca import Wpca
from ml.errors import TooFewPairs
from ml.evaluation.intervals import student_interval
from ml.evaluation.protocols import Protocol, held_out_people, number_people
from ml.evaluation.protocols import read as read_protocol
from ml.evaluation.report import rank_protocol
from ml.evaluation.retrieval import average_precisions
from ml.types import Ids, Rows
from papers.beyond.pair_selection import Labels, half_the_same, suggested
from papers.harness.photos import Photos

SETS = {"lfw": "celeba", "celeba": "lfw"}
"""Set that is measured -> set whose principal axes are used."""
AXES_SAMPLE_FACES = 4000
DIM, FIRST_MODEL_FACES = 128, 2000
LDML_AXES = 2000
"""Wider rows are reduced by the fit itself."""
MANY_LABELS = 200
REQUEST_PAIRS, LARGE_REQUEST_PAIRS = 20, 200
"""Questions of one request, up to MANY_LABELS and beyond."""
BALANCED = "balanced random pairs"


@dataclass(frozen=True, eq=False)
class QuestionTrial:
    """One split of a set. rows: (N, D) of all photos"""

    protocol: Protocol
    rows: Rows


Rule = Callable[[Labels, Embedder, int], None]
"""Labels `count` more pairs, chosen by the current model; called as (labels, model, count)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="LFW and CelebA10k")
    parser.add_argument("--cache", type=Path, default=Path(".likeness/photos"), help="keeps crops and descriptors")
    parser.add_argument("--set", action="append", choices=sorted(SETS), help="default: both")
    parser.add_argument("--rule", action="append", choices=sorted(RULES), help="default: all")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sizes", default="50,200,1000", help="numbers of labels, rising")
    parser.add_argument("--axes", type=int, default=512, help="principal axes of the other set; 0: all numbers")
    parser.add_argument("--json", type=Path, default=Path(".likeness/question_rules.json"))
    options = parser.parse_args()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {}
    sizes = [int(size) for size in options.sizes.split(",")]
    for photo_set in options.set or SETS:
        photos = Photos(options.data, options.cache)
        rows = read_rows(photos, photo_set, options.axes)
        for seed in range(options.seeds):
            trial = QuestionTrial(make_protocol(photos, photo_set, seed), rows)
            for rule in options.rule or RULES:
                key = f"{photo_set}, {rule}, {options.axes} axes, {options.sizes}, seed {seed}"
                if key not in results:
                    results[key] = dict(measure(trial, rule, sizes, seed))
                    options.json.write_text(json.dumps(results) + "\n")
                    print(key, flush=True)
        show(results, photo_set, options, sizes)


def read_rows(photos: Photos, photo_set: str, axes: int) -> Rows:
    """Return (N, axes) LBP in the principal axes of the other set, or (N, 9860) if axes is 0."""
    rows = photos.rows(photo_set, "lbp")
    if not axes:
        return rows
    other = photos.rows(SETS[photo_set], "lbp")
    sample = other[np.sort(np.random.default_rng(0).permutation(len(other))[:AXES_SAMPLE_FACES])].astype(np.float32)
    mean = sample.mean(0)
    sample -= mean
    strength, mix = np.linalg.eigh(sample @ sample.T)
    basis = (sample.T @ mix[:, ::-1][:, :axes]) / np.sqrt(strength[::-1][:axes])
    blocks = [(rows[start : start + 1000] - mean) @ basis for start in range(0, len(rows), 1000)]
    return np.ascontiguousarray(np.concatenate(blocks), np.float32)


def make_protocol(photos: Photos, photo_set: str, seed: int) -> Protocol:
    if photo_set == "lfw":
        return read_protocol(f"disjoint-{seed}", photos.lfw.protocol, photos.names("lfw"))
    return held_out_people(number_people(photos.names(photo_set)), 0.5, seed=seed)


def measure(trial: QuestionTrial, rule: str, sizes: Sequence[int], seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Ask, fit and measure at each size. Yields the size, and the average precision of each query (0..1)."""
    split = trial.protocol
    labels = Labels(trial.rows[split.training], split.people[split.training], np.random.default_rng(seed))
    model: Embedder = Wpca(dim=DIM, unit=True).fit(TrainingSet(labels.rows[:FIRST_MODEL_FACES], ()))
    yield "0", judge(trial, model) | {"same": 0}
    for size in sizes:
        RULES[rule](labels, model, size - len(labels.pairs))
        with suppress(TooFewPairs):  # then the model before goes on serving
            model = fit(labels.training_set())
        yield str(size), judge(trial, model) | {"same": int(labels.same.sum()), "labels": len(labels.pairs)}


def fit(data: TrainingSet) -> Embedder:
    axes = 0 if data.rows.shape[1] <= LDML_AXES else LDML_AXES
    return Ldml.from_options(dim=DIM, axes=axes).fit(data)


def judge(trial: QuestionTrial, model: Embedder) -> dict[str, Any]:
    ranked = rank_protocol(model.embed(trial.rows), trial.protocol, metric=model.metric)
    return {"ap": np.round(average_precisions(ranked), 5).tolist(), "people": ranked.groups.tolist()}


def ask_balanced(labels: Labels, model: Embedder, count: int) -> None:
    """Label as many pairs of one person as of two, drawn by somebody who knows the answers."""
    half_the_same(labels, model, fit, count)


def ask_uncertain(labels: Labels, model: Embedder, count: int) -> None:
    """Label the pairs of which the model is least sure: the earlier rule of the service."""
    suggested(labels, model, fit, count)


def ask_suggested(labels: Labels, model: Embedder, count: int) -> None:
    """Label the pairs that the service suggests."""
    _ask(labels, model, count, select_pairs)


def ask_probable(labels: Labels, model: Embedder, count: int) -> None:
    """Label the pairs that are most probably the same."""
    _ask(labels, model, count, _select_nearest)


def _ask(labels: Labels, model: Embedder, count: int, choose: Callable[..., PairSuggestions]) -> None:
    embedded, wanted = model.embed(labels.rows), len(labels.pairs) + count
    candidates = find_candidates(embedded, model.metric, labels.pairs)
    unknown = np.full(len(embedded), -1, np.int64)
    while len(labels.pairs) < wanted:
        request = min(wanted - len(labels.pairs), REQUEST_PAIRS if wanted <= MANY_LABELS else LARGE_REQUEST_PAIRS)
        chosen = choose(candidates, unknown, PairAnswers(labels.pairs, labels.same), request)
        if not len(chosen.pairs):
            return
        labels.add(chosen.pairs, request)


def _select_nearest(candidates: CandidatePairs, subjects: Ids, answers: PairAnswers, limit: int) -> PairSuggestions:
    n = len(subjects)
    is_new = ~np.isin(candidates.pairs @ [n, 1], np.sort(answers.pairs, axis=1) @ [n, 1])
    first = np.flatnonzero(is_new)[np.argsort(candidates.scores[is_new])[:limit]]
    return PairSuggestions(candidates.pairs[first], candidates.distances[first], first * 0.0, first * 0.0)


RULES: dict[str, Rule] = {
    BALANCED: ask_balanced,
    "most uncertain": ask_uncertain,
    "most probably the same": ask_probable,
    "suggested": ask_suggested,
}


def show(results: dict[str, Any], photo_set: str, options: argparse.Namespace, sizes: Sequence[int]) -> None:
    """Print mAP and "same" answers of each rule, and the difference from balanced pairs with its 95 % interval."""

    def read(rule: str, size: int, figure: str) -> list[float]:
        keys = (f"{photo_set}, {rule}, {options.axes} axes, {options.sizes}, seed {s}" for s in range(options.seeds))
        return [float(np.mean(results[key][str(size)][figure])) for key in keys]

    for rule in options.rule or RULES:
        for size in sizes:
            precision, same = 100 * np.array(read(rule, size, "ap")), np.mean(read(rule, size, "same"))
            shown = f"{photo_set}, {rule}, {size}: mAP {precision.mean():.2f}, same {same:.0f}"
            if BALANCED in (options.rule or RULES) and rule != BALANCED and options.seeds > 1:
                gains = precision - 100 * np.array(read(BALANCED, size, "ap"))
                error = gains.std(ddof=1) / len(gains) ** 0.5
                gain = student_interval(float(gains.mean()), float(error), len(gains) - 1)
                shown += f", less {BALANCED}: {gain.value:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"
            print(shown)


if __name__ == "__main__":
    main()
