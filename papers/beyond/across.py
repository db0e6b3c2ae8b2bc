"""Across data sets: fitted on CelebA10k, searched in LFW."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ml.embedders.base import Progress
from ml.evaluation.report import rank_protocol
from papers.beyond import celeba
from papers.beyond.strangers import WHAT, called, dims, draws, methods
from papers.clml.fits import NAMES, Fits
from papers.clml.rows import Part
from papers.harness.lab import Lab, Method, cost, ranked_arrays
from papers.harness.plan import Found, Result, Row, Table, Work
from papers.harness.results import ALONE, difference, figure, told

THERE, HERE = "fitted on CelebA10k", "fitted on LFW"
COLUMNS = tuple(f"{where}: {what}" for where in (THERE, HERE) for what in WHAT)


@dataclass(frozen=True, eq=False)
class Line:
    """there: the one fit on CelebA10k; here: the same method's fits on LFW itself, draw by draw."""

    features: str
    method: Method
    there: Work
    here: Sequence[Work]

    @property
    def name(self) -> str:
        return f"{NAMES[self.features]}, {called(self.method)}"


def across(fits: Fits) -> Part | None:
    """None where CelebA10k is not there, or not who in it looks like somebody in LFW, or time is short."""
    if fits.lab.scope.quick or not celeba.there(fits.lab):
        return None
    lines = list(_lines(fits))
    works = [work for line in lines for work in (line.there, *line.here)]
    return Part(works, lambda: _table(fits, lines))


def _lines(fits: Fits) -> Iterator[Line]:
    """On both sides with the options that were chosen for people never seen."""
    for features in fits.features:
        for method in methods(fits, features, "disjoint", dims(fits, features)):
            here = fits.works(method, features, "queries")
            yield Line(features, method, _fit(fits.lab, method, features, len(here)), here)


def _fit(lab: Lab, method: Method, features: str, draws: int) -> Work:
    """One fit, and what every draw of LFW's queries finds by it: arrays as `ranked_arrays` has them, named by draw."""
    protocols = [f"queries-{i}" for i in range(draws)]
    key = {**method.key, "features": features, "protocol": protocols, **celeba.ABOUT}

    def run(folder: Path, progress: Progress) -> Found:
        made, embedder = celeba.people(lab, features), method.build()
        embedder.fit(made, progress=progress)
        embedded = embedder.embed(lab.photos.rows("lfw", features))
        arrays: dict[str, NDArray[Any]] = {}
        for name in protocols:
            arrays |= ranked_arrays(rank_protocol(embedded, lab.protocol(name), metric=embedder.metric), name)
        return {"faces": len(made.rows), "notes": dict(embedder.notes)}, arrays

    return Work(f"{method.name} {method.dim or ''} {features} from CelebA10k", key, 2 * cost(method, features), run)


def by_draw(found: Result, draws: int) -> list[Result]:
    """What each draw's queries found, as if each had been a result of its own."""
    parts = ("ranks", "counts", "people")
    return [
        replace(found, arrays={f"{ALONE}_{part}": found.arrays[f"queries-{i}_{part}"] for part in parts})
        for i in range(draws)
    ]


def _table(fits: Fits, lines: list[Line]) -> Table:
    lab = fits.lab
    rows, notes = [], []
    for line in lines:
        there, here = _sides(lab, line)
        shown = {f"{THERE}: {what}": figure(there, what) for what in WHAT}
        shown |= {f"{HERE}: {what}": figure(here, what) for what in WHAT}
        rows.append(Row(line.name, shown, works=[line.there, *line.here]))
        if line.method.name == "clml":
            wanted = (line.features, "ldml", line.method.dim)
            [ldml] = [n for n in lines if (n.features, n.method.name, n.method.dim) == wanted]
            apart = [f"{what} {told(difference(there, _sides(lab, ldml)[0], what))}" for what in WHAT]
            notes.append(f"{line.name}, {THERE}, less LDML: {'; '.join(apart)}")
    whole, faces = len(lab.photos.names("celeba")), lab.result(lines[-1].there).facts["faces"]
    header = (
        f"Fitted on CelebA10k ({whole:,} faces; {whole - faces:,} of people who look like one in LFW left out), and "
        f"beside it on LFW's gallery itself, the papers' closed set: both by the options chosen for people never seen, "
        f"so that the columns differ by data alone. Searched: LFW, 423 queries, gallery 12,810, in percent. "
        f"{draws(fits, 'queries')}."
    )
    return Table("across", "Across data sets", header, COLUMNS, rows, notes=notes)


def _sides(lab: Lab, line: Line) -> tuple[list[Result], list[Result]]:
    return by_draw(lab.result(line.there), len(line.here)), lab.results(line.here)
