"""The command `likeness reproduce`. What it needs is imported when it runs: `likeness --help` imports this module."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from papers.harness.run_context import RunContext
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
    paper: Annotated[
        Paper, typer.Argument(help="the paper whose tables to compute; beyond: experiments that no paper made")
    ],
    data: Annotated[Path | None, typer.Option(exists=True, file_okay=False, help="folder of the data sets")] = None,
    draws: Annotated[int, typer.Option(min=1, max=10, help="draws of the queries for LBP at d = 32")] = 10,
    few_draws: Annotated[
        int, typer.Option("--few", min=1, max=10, help="draws for slower fits: d = 128, Fisher vectors, sweeps")
    ] = 3,
    quick: Annotated[bool, typer.Option(help="one draw and fewer settings; takes minutes")] = False,
    page: Annotated[bool, typer.Option(help="compute nothing; write the tables from existing results")] = False,
    from_json: Annotated[
        bool, typer.Option(help="recompute the verdicts of existing JSON files and write their pages; needs no data")
    ] = False,
    cost: Annotated[bool, typer.Option(help="only estimate the time")] = False,
    out: Annotated[
        Path | None, typer.Option(help="folder for JSON, Markdown and pictures [docs/results, or its quick/]")
    ] = None,
    cache: Annotated[Path, typer.Option(help="folder of results; may be deleted")] = Path(".likeness/reproduce"),
    threads: Annotated[int, typer.Option(help="threads; 0: one per core")] = 0,
) -> None:
    """Compute the tables of the papers, and write each figure beside the paper's own.

    You can interrupt it at any time; the next run continues from there.
    """
    from joblib import cpu_count

    from app.cli.client import console
    from app.threads import set_threads
    from papers.harness import runner, summary
    from papers.harness.photos import Photos
    from papers.harness.result_store import ResultStore
    from papers.harness.run_context import RunContext
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
    scope = Scope(1, 1, True) if quick else Scope(draws, draws if cuda else min(few_draws, draws))
    context = RunContext(Photos(data, cache), ResultStore(cache / "results"), scope)
    chapters = {one: _chapter(one)(context) for one in papers}
    runner.print_cost(list(chapters.values()), context.store)
    if cost:
        return
    command = f"likeness reproduce {paper} --data DATA" + (
        " --quick" if quick else f" --draws {draws} --few {few_draws}"
    )
    for one, chapter in chapters.items():
        if not page:
            runner.compute_missing([chapter], context.store)
        console.print(f"{one}: {_write_page(chapter, context, folder, command, quick=quick)}", soft_wrap=True)
    summary.write_figures(folder)


def _write_page(chapter: "Chapter", context: "RunContext", folder: Path, command: str, *, quick: bool) -> str:
    """Write a paper's page from the results that are there. Returns what was written and how much is missing."""
    from papers.harness import page_writer, runner
    from papers.harness.result_store import ResultMissing

    missing = runner.count_missing(chapter, context.store)
    try:
        written = page_writer.write_chapter(
            folder, chapter.name, chapter.title, command, chapter.tables(), context.store, missing, quick=quick
        )
    except ResultMissing as error:
        return f"no page; {missing} results are missing, among them: {error}"
    return f"{written}, {missing} results missing" if missing else str(written)


def _rewrite_pages(papers: Sequence[Paper], folder: Path) -> None:
    """Recompute the verdicts in the JSON of these papers, and write their pages."""
    from app.cli.client import console
    from papers.harness import pages, summary

    for path in (folder / f"{paper}.json" for paper in papers):
        if not path.exists():
            raise typer.BadParameter(f"{path} does not exist; without --from-json the tables are computed")
        console.print(f"{path.stem}: {pages.rewrite(path)}", soft_wrap=True)
    summary.write_figures(folder)


def _chapter(paper: Paper) -> "Callable[[RunContext], Chapter]":
    made: Callable[[RunContext], Chapter] = import_module(f"{PACKAGES[paper]}.chapter").chapter
    return made


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()
