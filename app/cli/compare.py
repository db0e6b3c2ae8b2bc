"""`likeness compare`: compare two models on a collection."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from app.cli.client import connect, console, wait_for_job

ROW_LABELS = {
    "mAP": "mAP",
    "1-call@1": "right person first",
    "1-call@10": "right person among the first ten",
    "named_rightly": "queries named rightly",
    "strangers_named": "strangers named",
    "labelled_pairs": "labelled pairs judged correctly",
}


def compare(
    collection: Annotated[str, typer.Argument(help="id of the collection")],
    first: Annotated[str, typer.Argument(help="id of a model, or champion, challenger, previous")],
    second: Annotated[str, typer.Argument(help="the model to compare with it")],
    task: Annotated[str, typer.Option(help="the task of the models")] = "identity",
    out: Annotated[Path | None, typer.Option(help="write the result as JSON")] = None,
    url: Annotated[str | None, typer.Option(help="address of the service; default LIKENESS_URL")] = None,
) -> None:
    """Measure two models on a collection's people. Prints both, and the difference with its 95 % interval."""
    with connect(url) as client:
        path = f"/v1/collections/{collection}/deployments/{task}:compare"
        job = wait_for_job(client, client.post(path, json={"models": [first, second]}), "compare")
    result = job["result"]
    if out is not None:
        out.write_text(json.dumps(result, indent=1))
    _print_result(result)


def _print_result(result: dict[str, Any]) -> None:
    first, second = result["models"]
    measured = result["measured_on"]
    exposure = (
        "unknown to both models" if measured["unseen_by_both"] else "some of whom one of the models was TRAINED on"
    )
    title = f"{measured['people_measured']:,} people of {result['collection']}, {exposure}"
    table = Table("%", first["model"], second["model"], "second minus first", "p", title=title)
    for name, label in ROW_LABELS.items():
        if name in first:
            difference = result["difference"][name]
            table.add_row(
                label,
                _format_share(first[name]),
                _format_share(second[name]),
                _format_share(difference),
                f"{difference['p']:.3g}",
            )
    console.print(table)
    gate = result["gate"]
    if gate is not None:
        reasons = "; ".join([*gate["reasons"], *gate["unclear"]])
        verdict = f"the gate refuses: {reasons}" if reasons else "the gate allows it"
        console.print(f"{second['model']} in place of {first['model']}: {verdict}")


def _format_share(figure: dict[str, float | None]) -> str:
    value, low, high = (figure[name] for name in ("value", "low", "high"))
    if value is None:
        return "-"
    interval = "" if low is None or high is None else f" ({100 * low:.1f} to {100 * high:.1f})"
    return f"{100 * value:.1f}{interval}"
