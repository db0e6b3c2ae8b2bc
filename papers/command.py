"""The command `likeness reproduce`. What it needs is imported when it runs: `likeness --help` imports this module."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from papers.harness.lab_fits import Lab
    from papers.harness.table_types import Chapter


class Paper(StrEnum):
    cosim = "cosim"
    manifolds = "manifolds"
    cpmtml = "cp-mtml"
    clml = "clml"
    beyond = "beyond"
    all = "all"


RESULTS = Path("docs/results")
PACKAGES: dict[Paper, str] = {paper: f"papers.{paper.name}" for paper in Paper if paper is not Paper.all}


def reproduce(
    paper: Annotated[Paper, typer.Argument(help="whose tables; beyond: what none of the papers tested")],
    data: Annotated[Path | None, typer.Option(exists=True, file_okay=False, help="folder of the data sets")] = None,
    draws: Annotated[int, typer.Option(min=1, max=10, help="of the queries, LBP at d = 32")] = 10,
    few: Annotated[int, typer.Option(min=1, max=10, help="of what is dearer: d = 128, Fisher vectors, sweeps")] = 3,
    quick: Annotated[bool, typer.Option(help="one draw and fewer settings: a look in minutes")] = False,
    page: Annotated[bool, typer.Option(help="compute nothing, write the tables of what is there")] = False,
    from_json: Annotated[
        bool, typer.Option(help="judge the JSON there is again and write its page; needs no data and computes nothing")
    ] = False,
    cost: Annotated[bool, typer.Option(help="only say what it will cost")] = False,
    out: Annotated[
        Path | None, typer.Option(help="folder for JSON, Markdown and pictures [docs/results, or its quick/]")
    ] = None,
    cache: Annotated[Path, typer.Option(help="what was computed; may be deleted")] = Path(".likeness/reproduce"),
    threads: Annotated[int, typer.Option(help="0: one a core")] = 0,
) -> None:
    """Compute the papers' tables and write each figure beside the paper's own. Stop it when you like: it goes on where
    it was."""
    from joblib import cpu_count

    from app.cli.client import console
    from app.threads import set_threads
    from papers.harness import runner, summary
    from papers.harness.lab_fits import Lab
    from papers.harness.photos import Photos
    from papers.harness.result_store import ResultStore
    from papers.harness.table_types import Scope

    papers = list(PACKAGES) if paper is Paper.all else [paper]
    folder = out or (RESULTS / "quick" if quick else RESULTS)
    if from_json:
        _rewrite_pages(papers, folder)
        return
    if data is None:
        raise typer.BadParameter("give the folder of the data sets, or --from-json", param_hint="--data")
    set_threads(threads or cpu_count())
    cuda = _cuda()
    scope = Scope(1, 1, True) if quick else Scope(draws, draws if cuda else min(few, draws))
    lab = Lab(Photos(data, cache), ResultStore(cache / "results"), scope)
    chapters = {one: _chapter(one)(lab) for one in papers}
    runner.print_cost(list(chapters.values()), lab.store)
    if cost:
        return
    command = f"likeness reproduce {paper} --data DATA" + (" --quick" if quick else f" --draws {draws} --few {few}")
    for one, chapter in chapters.items():
        if not page:
            runner.compute_missing([chapter], lab.store)
        console.print(f"{one}: {_write_page(chapter, lab, folder, command, quick=quick)}", soft_wrap=True)
    summary.write_figures(folder)


def _write_page(chapter: "Chapter", lab: "Lab", folder: Path, command: str, *, quick: bool) -> str:
    """Write a paper's page from the results that are there. Returns what was written and how much is missing."""
    from papers.harness import page_writer, runner
    from papers.harness.result_store import ResultMissing

    missing = runner.count_missing(chapter, lab.store)
    try:
        written = page_writer.write_chapter(
            folder, chapter.name, chapter.title, command, chapter.tables(), lab.store, missing, quick=quick
        )
    except ResultMissing as error:
        return f"no page, {missing} results missing, among them that {error}"
    return f"{written}, {missing} results missing" if missing else str(written)


def _rewrite_pages(papers: Sequence[Paper], folder: Path) -> None:
    """Judges the JSON of these papers again and writes their pages."""
    from app.cli.client import console
    from papers.harness import pages, summary

    for path in (folder / f"{paper}.json" for paper in papers):
        if not path.exists():
            raise typer.BadParameter(f"{path} is not there: without --from-json the tables are computed")
        console.print(f"{path.stem}: {pages.rewrite(path)}", soft_wrap=True)
    summary.write_figures(folder)


def _chapter(paper: Paper) -> "Callable[[Lab], Chapter]":
    made: Callable[[Lab], Chapter] = import_module(f"{PACKAGES[paper]}.chapter").chapter
    return made


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()
