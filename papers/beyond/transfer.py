"""Across data sets: fitted on CelebA10k, searched in LFW."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ml.embedders.base import Progress
from ml.evaluation.report import rank_protocol
from papers.beyond import celeba
from papers.beyond.unseen_people import WHAT, dims, draws, methods, name_method
from papers.clml.fits import NAMES, ClmlFits
from papers.clml.table_rows import TableWorks
from papers.harness.lab_fits import Lab, Method, estimate_seconds, ranked_arrays
from papers.harness.results import ALONE, describe_difference, difference, figure
from papers.harness.table_types import Result, Row, Table, Work, WorkOutput

THERE, HERE = "fitted on CelebA10k", "fitted on LFW"
COLUMNS = tuple(f"{where}: {what}" for where in (THERE, HERE) for what in WHAT)


@dataclass(frozen=True, eq=False)
class TransferEntry:
    """there: the one fit on CelebA10k; here: the same method's fits on LFW itself, draw by draw."""

    features: str
    method: Method
    there: Work
    here: Sequence[Work]

    @property
    def name(self) -> str:
        return f"{NAMES[self.features]}, {name_method(self.method)}"


def across(fits: ClmlFits) -> TableWorks | None:
    """None where CelebA10k is not there, or not who in it looks like somebody in LFW, or time is short."""
    if fits.lab.scope.quick or not celeba.there(fits.lab):
        return None
    entries = list(_lines(fits))
    works = [work for entry in entries for work in (entry.there, *entry.here)]
    return TableWorks(works, lambda: _table(fits, entries))


def _lines(fits: ClmlFits) -> Iterator[TransferEntry]:
    """On both sides with the options that were chosen for people never seen."""
    for features in fits.features:
        for method in methods(fits, features, "disjoint", dims(fits, features)):
            here = fits.works(method, features, "queries")
            yield TransferEntry(features, method, _fit(fits.lab, method, features, len(here)), here)


def _fit(lab: Lab, method: Method, features: str, draws: int) -> Work:
    """One fit, and what every draw of LFW's queries finds by it: arrays as `ranked_arrays` has them, named by draw."""
    protocols = [f"queries-{i}" for i in range(draws)]
    key = {**method.key, "features": features, "protocol": protocols, **celeba.ABOUT}

    def run(folder: Path, progress: Progress) -> WorkOutput:
        made, embedder = celeba.people(lab, features), method.build()
        embedder.fit(made, progress=progress)
        embedded = embedder.embed(lab.photos.rows("lfw", features))
        arrays: dict[str, NDArray[Any]] = {}
        for name in protocols:
            arrays |= ranked_arrays(rank_protocol(embedded, lab.protocol(name), metric=embedder.metric), name)
        return {"faces": len(made.rows), "notes": dict(embedder.notes)}, arrays

    return Work(
        f"{method.name} {method.dim or ''} {features} from CelebA10k", key, 2 * estimate_seconds(method, features), run
    )


def by_draw(result: Result, draws: int) -> list[Result]:
    """What each draw's queries found, as if each had been a result of its own."""
    parts = ("ranks", "counts", "people")
    return [
        replace(result, arrays={f"{ALONE}_{part}": result.arrays[f"queries-{i}_{part}"] for part in parts})
        for i in range(draws)
    ]


def _table(fits: ClmlFits, entries: list[TransferEntry]) -> Table:
    lab = fits.lab
    rows, notes = [], []
    for entry in entries:
        there, here = _sides(lab, entry)
        shown = {f"{THERE}: {what}": figure(there, what) for what in WHAT}
        shown |= {f"{HERE}: {what}": figure(here, what) for what in WHAT}
        rows.append(Row(entry.name, shown, works=[entry.there, *entry.here]))
        if entry.method.name == "clml":
            wanted = (entry.features, "ldml", entry.method.dim)
            [ldml] = [n for n in entries if (n.features, n.method.name, n.method.dim) == wanted]
            differences = [
                f"{what} {describe_difference(difference(there, _sides(lab, ldml)[0], what))}" for what in WHAT
            ]
            notes.append(f"{entry.name}, {THERE}, less LDML: {'; '.join(differences)}")
    whole, faces = len(lab.photos.names("celeba")), lab.result(entries[-1].there).record["faces"]
    header = (
        f"Fitted on CelebA10k ({whole:,} faces; {whole - faces:,} of people who look like one in LFW left out), and "
        f"beside it on LFW's gallery itself, the papers' closed set: both by the options chosen for people never seen, "
        f"so that the columns differ by data alone. Searched: LFW, 423 queries, gallery 12,810, in percent. "
        f"{draws(fits, 'queries')}."
    )
    return Table("across", "Across data sets", header, COLUMNS, rows, notes=notes)


def _sides(lab: Lab, entry: TransferEntry) -> tuple[list[Result], list[Result]]:
    return by_draw(lab.result(entry.there), len(entry.here)), lab.results(entry.here)
