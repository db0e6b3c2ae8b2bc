"""Across data sets: fitted on CelebA10k, searched in LFW."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ml.embedders.base import Progress
from ml.evaluation.report import rank_protocol
from papers.beyond import celeba
from papers.beyond.unseen_people import FIGURE_NAMES, dims, draws, methods, name_method
from papers.clml.fits import DESCRIPTOR_NAMES, ClmlFits
from papers.clml.table_rows import TableComputations
from papers.harness.results import ALONE, describe_difference, difference, figure
from papers.harness.run_context import Method, RunContext, estimate_seconds, ranked_arrays
from papers.harness.table_types import Computation, ComputationOutput, Result, Row, Table

THERE, HERE = "fitted on CelebA10k", "fitted on LFW"
COLUMNS = tuple(f"{where}: {what}" for where in (THERE, HERE) for what in FIGURE_NAMES)


@dataclass(frozen=True, eq=False)
class TransferEntry:
    """A row. there: the fit on CelebA10k; here: the fits of the same method on LFW, one per draw"""

    features: str
    method: Method
    there: Computation
    here: Sequence[Computation]

    @property
    def name(self) -> str:
        return f"{DESCRIPTOR_NAMES[self.features]}, {name_method(self.method)}"


def make_transfer_table(fits: ClmlFits) -> TableComputations | None:
    """Make the table; None if CelebA10k or the network for finding look-alikes is missing, or in a quick run."""
    if fits.context.scope.quick or not celeba.is_available(fits.context):
        return None
    entries = list(_lines(fits))
    computations = [computation for entry in entries for computation in (entry.there, *entry.here)]
    return TableComputations(computations, lambda: _table(fits, entries))


def _lines(fits: ClmlFits) -> Iterator[TransferEntry]:
    """Make the entries, on both sides with the options chosen for people never seen."""
    for features in fits.features:
        for method in methods(fits, features, "disjoint", dims(fits, features)):
            here = fits.computations(method, features, "queries")
            yield TransferEntry(features, method, _fit(fits.context, method, features, len(here)), here)


def _fit(context: RunContext, method: Method, features: str, draws: int) -> Computation:
    """Fit once, and rank LFW for each draw of queries. Arrays: see `ranked_arrays`, named by draw."""
    protocols = [f"queries-{i}" for i in range(draws)]
    key = {**method.key, "features": features, "protocol": protocols, **celeba.ABOUT}

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        made, embedder = celeba.people(context, features), method.build()
        embedder.fit(made, progress=progress)
        embedded = embedder.embed(context.photos.rows("lfw", features))
        arrays: dict[str, NDArray[Any]] = {}
        for name in protocols:
            arrays |= ranked_arrays(rank_protocol(embedded, context.protocol(name), metric=embedder.metric), name)
        return {"faces": len(made.rows), "notes": dict(embedder.notes)}, arrays

    return Computation(
        f"{method.name} {method.dim or ''} {features} from CelebA10k", key, 2 * estimate_seconds(method, features), run
    )


def by_draw(result: Result, draws: int) -> list[Result]:
    """Split a result by draw."""
    parts = ("ranks", "counts", "people")
    return [
        replace(result, arrays={f"{ALONE}_{part}": result.arrays[f"queries-{i}_{part}"] for part in parts})
        for i in range(draws)
    ]


def _table(fits: ClmlFits, entries: list[TransferEntry]) -> Table:
    context = fits.context
    rows, notes = [], []
    for entry in entries:
        there, here = _sides(context, entry)
        shown = {f"{THERE}: {what}": figure(there, what) for what in FIGURE_NAMES}
        shown |= {f"{HERE}: {what}": figure(here, what) for what in FIGURE_NAMES}
        rows.append(Row(entry.name, shown, computations=[entry.there, *entry.here]))
        if entry.method.name == "clml":
            wanted = (entry.features, "ldml", entry.method.dim)
            [ldml] = [n for n in entries if (n.features, n.method.name, n.method.dim) == wanted]
            differences = [
                f"{what} {describe_difference(difference(there, _sides(context, ldml)[0], what))}"
                for what in FIGURE_NAMES
            ]
            notes.append(f"{entry.name}, {THERE}, less LDML: {'; '.join(differences)}")
    whole, faces = len(context.photos.names("celeba")), context.result(entries[-1].there).record["faces"]
    header = (
        f"Fitted on CelebA10k ({whole:,} faces; {whole - faces:,} of people who look like one in LFW left out), and "
        f"beside it on LFW's gallery itself, the papers' closed set: both by the options chosen for people never seen, "
        f"so that the columns differ by data alone. Searched: LFW, 423 queries, gallery 12,810, in percent. "
        f"{draws(fits, 'queries')}."
    )
    return Table("across", "Across data sets", header, COLUMNS, rows, notes=notes)


def _sides(context: RunContext, entry: TransferEntry) -> tuple[list[Result], list[Result]]:
    return by_draw(context.result(entry.there), len(entry.here)), context.results(entry.here)
