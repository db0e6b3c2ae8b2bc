"""`likeness doctor`: examine a collection for faults."""

from typing import Annotated, Any

import typer
from rich.table import Table

from app.cli.client import connect, console, read_answer, wait_for_job

KIND_LABELS = {
    "named_for_strangers": "strangers match it",
    "duplicate": "one person twice?",
    "wrong_name": "wrong name?",
    "mixture": "several people?",
    "poor_face": "poor face",
    "damaged_face": "damaged face",
}


def doctor(
    collection: Annotated[str, typer.Argument(help="id of the collection")],
    limit: Annotated[int, typer.Option(min=1, help="findings to print")] = 30,
    url: Annotated[str | None, typer.Option(help="address of the service; default LIKENESS_URL")] = None,
) -> None:
    """Look for duplicates, wrong names, mixtures and poor faces. Prints them with advice; changes nothing."""
    with connect(url) as client:
        wait_for_job(client, client.post(f"/v1/collections/{collection}:examine"), "examine")
        report = read_answer(client.get(f"/v1/collections/{collection}/findings"))
    print_report(report, limit)


def print_report(report: dict[str, Any], limit: int) -> None:
    """Print the findings of an examination. limit: how many"""
    now = report["strangers_named"]
    named = f"strangers named: {100 * now:.2f} %" if now is not None else report["unmeasured_reason"]
    console.print(f"{report['faces']:,} faces of {report['subjects']:,} people; {named}")
    console.print(f"{report['subjects_with_one_face']:,} people have a single face")
    table = Table("finding", "subjects", "faces", "probability", "strangers named after", "advice")
    for finding in report["findings"][:limit]:
        probability, after = finding["probability"], finding["strangers_named_after"]
        table.add_row(
            KIND_LABELS[finding["kind"]],
            ", ".join(finding["subjects"]),
            str(len(finding["faces"])),
            "" if probability is None else f"{100 * probability:.1f} %",
            "" if after is None else f"{100 * after:.2f} %",
            finding["advice"],
        )
    console.print(table)
    hidden = sum(report["counts"].values()) - min(limit, len(report["findings"]))
    if hidden > 0:
        console.print(f"{hidden:,} more findings are not shown")
