"""`likeness train`: learn a model from a collection, and show what it is worth."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from app.cli.client import connect, console, wait_for_job

FIGURES = {"mAP": "mAP", "1-call@1": "right person first", "1-call@10": "right person among the first ten"}
PART_LABELS = {"common": "common to all tasks", "own": "its own", "both": "both"}
SHARES = ("distance_share", "variance_share", "separation_share")


def train(
    collection: Annotated[str, typer.Argument(help="id of the collection")],
    method: Annotated[
        str, typer.Option(help="auto chooses one; wccn, ldml, clml, cpmtml, ...; cosine learns nothing")
    ] = "auto",
    descriptor: Annotated[
        str | None, typer.Option(help="a name of `likeness recognisers list`; default: that of the serving model")
    ] = None,
    dim: Annotated[int | None, typer.Option(min=1, help="size of the embedding; default: the method's")] = None,
    out: Annotated[Path | None, typer.Option(help="write the model's id and the whole report as JSON")] = None,
    url: Annotated[str | None, typer.Option(help="address of the service; default LIKENESS_URL")] = None,
) -> None:
    """Learn a metric from the collection's subjects and labels. Prints how the candidate compares with what serves."""
    stated = {"descriptor": descriptor, "dim": dim}
    body = {"collection": collection, "method": method} | {k: v for k, v in stated.items() if v is not None}
    with connect(url) as client:
        result = wait_for_job(client, client.post("/v1/trainings", json=body), f"train {method}")["result"]
    if out is not None:
        out.write_text(json.dumps(result, indent=1))
    _print_result(collection, result)


def _print_result(collection: str, result: dict[str, Any]) -> None:
    report = result["report"] or {}
    for task, of_task in (report.get("tasks") or {}).items():
        if of_task["candidate"]:
            console.print(_build_comparison_table(task, of_task, report["held_out_people"]))
        if of_task.get("projections"):
            console.print(_build_projection_table(task, of_task["projections"]))
    if report.get("why_unmeasured"):
        console.print(f"Nothing was measured: {report['why_unmeasured']}.")
    if report.get("choice"):
        console.print(report["choice"]["reason"], soft_wrap=True)
    console.print(
        f"The candidate is {result['model']}. It serves once it is published: "
        f"likeness publish {collection} {result['model']}",
        soft_wrap=True,
    )


def _build_comparison_table(task: str, of_task: dict[str, Any], people: int) -> Table:
    """Return a table of the candidate and the serving model. of_task: the task's entry of the report"""
    current = of_task["current"]
    title = f"{task}, measured on {people:,} people whose photos were held out"
    table = Table("%", *([of_task["current_model"]] if current else []), "candidate", title=title)
    if current:
        table.add_column("difference")
    for name, label in FIGURES.items():
        models = [_format_interval(_get_figure(report, name)) for report in (current, of_task["candidate"]) if report]
        table.add_row(label, *models, *([_format_interval(of_task["difference"][name])] if current else []))
    return table


def _get_figure(report: dict[str, Any], name: str) -> dict[str, float]:
    """Return a figure of a model's report with its interval. name: as in FIGURES"""
    figure: dict[str, float] = (
        report["mean_average_precision"] if name == "mAP" else report["ncall"][name.removeprefix("1-call@")]
    )
    return figure


def _build_projection_table(task: str, projections: dict[str, Any]) -> Table:
    """Return a table with a row for each part of a task's projection. projections: the entry of the task"""
    angle = projections["angles"]["to_common"]
    between = f"; angles {angle['smallest']:.0f} to {angle['largest']:.0f} degrees" if angle else ""
    table = Table(
        "%", "mAP", "right first", "distance", "variance", "separation", title=f"projections of {task}{between}"
    )
    for name, part in (projections.get("parts") or {}).items():
        if part is not None:
            shares = (_format_share(part.get(share)) for share in SHARES)
            table.add_row(PART_LABELS[name], _format_interval(part["mAP"]), _format_interval(part["1-call@1"]), *shares)
    return table


def _format_share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _format_interval(figure: dict[str, float]) -> str:
    return f"{100 * figure['value']:.1f} ({100 * figure['low']:.1f} to {100 * figure['high']:.1f})"
