"""Measure how many labels are needed: accuracy on people without labels, by number and choice of the pairs."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ml.embedders.base import Embedder, Progress, TrainingSet
from ml.errors import TooFewPairs
from ml.evaluation.protocols import Protocol
from ml.evaluation.report import rank_protocol
from papers.beyond.pair_selection import HELD_OUT, PAIR_SELECTIONS, Labels
from papers.beyond.uncertain_pairs import EXPECTED_SAME_SHARE, MAX_ANSWERS
from papers.clml.fits import ClmlFits
from papers.clml.table_rows import TableComputations
from papers.harness.feature_view import view_features
from papers.harness.results import describe_difference, difference, figure, figures
from papers.harness.run_context import Method, RunContext, ranked_arrays
from papers.harness.table_types import Computation, ComputationOutput, Figure, Plot, Result, Row, Table

SIZES, QUICK = (50, 200, 1000, 5000, 20_000, 50_000), (1000,)
FIRST_MODEL_FACES = 2000
"""Faces to which the service's first model is fitted."""
FEATURES = "lbp"
DIM = 128
START = Method("wpca", DIM, {"unit": True})
SUGGESTED = "suggested"
FIGURE_NAMES, SAME_COLUMN = ("mAP", "1@10"), "the same"
COLUMNS = (*FIGURE_NAMES, SAME_COLUMN)
FIT_SECONDS = 12.0


def make_label_count_table(fits: ClmlFits) -> TableComputations:
    context, sizes = fits.context, QUICK if fits.context.scope.quick else SIZES
    chosen = fits.options(FEATURES, "disjoint").of_ldml(DIM)
    curves = {
        way: [_curve(context, chosen, way, f"disjoint-{i}", sizes) for i in context.scope.few_seeds]
        for way in (list(PAIR_SELECTIONS)[1:] if context.scope.quick else PAIR_SELECTIONS)
    }
    named = [context.retrieval(chosen, FEATURES, f"disjoint-{i}") for i in context.scope.few_seeds]
    computations = [*named, *(computation for draws in curves.values() for computation in draws)]
    return TableComputations(computations, lambda: _table(context, curves, named, sizes))


def _curve(context: RunContext, method: Method, way: str, protocol: str, sizes: Sequence[int]) -> Computation:
    """Fit to growing numbers of labels. Arrays: see `ranked_arrays`, named by the number of labels."""
    rule = {"held_out": HELD_OUT, "answers by chance": MAX_ANSWERS, "first": EXPECTED_SAME_SHARE}
    key = {
        "what": "labels", "way": way, "protocol": protocol, "sizes": list(sizes), "features": FEATURES,
        "start": START.key, **method.key, **(rule if way == SUGGESTED else {}),
    }  # fmt: skip

    def fit(data: TrainingSet) -> Embedder:
        return method.build().fit(data)

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        split = context.protocol(protocol)
        rows = view_features(context.photos, FEATURES, split.training, method.build()).rows("lfw")
        labels = Labels(rows[split.training], split.people[split.training], np.random.default_rng(0))
        model = START.build().fit(TrainingSet(labels.rows[:FIRST_MODEL_FACES], ()))
        arrays = _searched(split, model.embed(rows), model, 0)
        same, learned = {0: 0}, dict[int, bool]()
        for done, size in enumerate(sizes):
            PAIR_SELECTIONS[way](labels, model, fit, size - len(labels.pairs))
            learned[size] = True
            try:
                model = fit(labels.training_set())
            except TooFewPairs:  # then the model before goes on serving
                learned[size] = False
            same[size] = int(labels.same.sum())
            arrays |= _searched(split, model.embed(rows), model, size)
            progress(done + 1, len(sizes), {})
        return {"same": same, "learned": learned, "faces": len(labels.rows)}, arrays

    return Computation(f"labels, {way}, {protocol}", key, FIT_SECONDS * len(sizes), run)


def _searched(split: Protocol, embedded: Any, model: Embedder, size: int) -> dict[str, Any]:
    return ranked_arrays(rank_protocol(embedded, split, metric=model.metric), str(size))


def _table(
    context: RunContext, curves: Mapping[str, list[Computation]], named: list[Computation], sizes: Sequence[int]
) -> Table:
    results = {way: context.results(computations) for way, computations in curves.items()}
    one = next(iter(curves))
    unlabelled = f"no labels: WPCA-cosine of the first {FIRST_MODEL_FACES:,} faces, d = {DIM}"
    rows = [Row(unlabelled, _figures(results[one], 0), computations=curves[one])]
    rows += [_row(results[way], way, size, computations) for size in sizes for way, computations in curves.items()]
    whole = context.results(named)
    rows.append(Row("everybody named, no pairs", figures(whole, FIGURE_NAMES), computations=named))
    header = (
        f"LFW, LBP; {len(named)} draws of `disjoint-*`: pairs are labelled in the training half of the people, none of "
        f"whom is named; the queries and the gallery are other people. LDML, d = {DIM}, from pairs alone "
        f"(and what follows from them), in percent. The model of one row suggests the pairs of the next, as the "
        f"service did until November 2026: those of which it is least sure, by what a fit without a fifth of the "
        f"people makes of these and by how many of its questions were about the same person so far. {SAME_COLUMN}: "
        f"how many of the pairs."
    )
    alt = "mAP on people without labels against the number of labelled pairs, one line for each way of choosing them"
    plot = Plot(
        "beyond-labels", alt, partial(_draw, results_by_way=results, named=figure(whole, "mAP").value, sizes=sizes)
    )
    return Table("labels", "Number of labels", header, COLUMNS, rows, [plot], _notes(results, sizes))


def _row(results: Sequence[Result], way: str, size: int, computations: Sequence[Computation]) -> Row:
    """Make a row. If there are too few pairs of either kind, nothing is learned and the previous model is kept."""
    untaught = sum(not r.record["learned"][str(size)] for r in results)
    cause = f"too few pairs of either kind in {untaught} of {len(results)} draws" if untaught else ""
    steps = (0,) if untaught == len(results) else None
    return Row(
        f"{size:,} pairs, {way}", _figures(results, size), cause=cause, computations=computations, fit_steps=steps
    )


def _figures(results: Sequence[Result], size: int) -> dict[str, Figure]:
    counts = [float(r.record["same"][str(size)]) for r in results]
    return figures(results, FIGURE_NAMES, str(size)) | {SAME_COLUMN: Figure(float(np.mean(counts)), draws=len(counts))}


def _notes(results_by_way: Mapping[str, list[Result]], sizes: Sequence[int]) -> list[str]:
    notes = []
    for other in (way for way in results_by_way if way != SUGGESTED):
        gaps = [
            f"{size:,}: "
            f"{describe_difference(difference(results_by_way[SUGGESTED], results_by_way[other], 'mAP', str(size)))}"
            for size in sizes
        ]
        notes.append(f"Suggested less {other}, mAP, paired: " + "; ".join(gaps))
    for way, results in results_by_way.items():
        missed = {int(n): sum(not r.record["learned"][n] for r in results) for n in results[0].record["learned"]}
        told_of = ", ".join(f"{n:,} ({draws} of {len(results)} draws)" for n, draws in missed.items() if draws)
        if told_of:
            notes.append(f"{way}: too few pairs of either kind to learn from at {told_of}; the previous model is kept")
    return notes


def _draw(axes: Any, *, results_by_way: Mapping[str, list[Result]], named: float, sizes: Sequence[int]) -> None:
    for way, results in results_by_way.items():
        curve = [figure(results, "mAP", str(n)) for n in sizes]
        axes.plot(sizes, [f.value for f in curve], marker="o", label=way)
        axes.fill_between(sizes, [f.low for f in curve], [f.high for f in curve], alpha=0.15)
    start = figure(next(iter(results_by_way.values())), "mAP", "0").value
    axes.axhline(start, color="grey", linestyle=":", label="no labels")
    axes.axhline(named, color="grey", linestyle="--", label="everybody named")
    axes.set(xscale="log", xlabel="labelled pairs", ylabel="mAP, people without labels")
    axes.legend(loc="center left")
