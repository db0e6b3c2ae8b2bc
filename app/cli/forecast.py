"""`likeness forecast`: predict how many strangers are named, and how many people found, as a collection grows."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from app.cli.client import connect, console, read_answer, wait_for_job
from ml.identification.growth_plot import draw_growth


def forecast(
    collection: Annotated[str, typer.Argument(help="id of the collection")],
    fpir: Annotated[
        float | None, typer.Option(help="share of strangers named today; default: that of the collection")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="SVG file to write")] = None,
    url: Annotated[str | None, typer.Option(help="address of the service; default LIKENESS_URL")] = None,
) -> None:
    """Predict strangers named and people found for up to 100 times as many faces. Changes nothing."""
    body = {} if fpir is None else {"fpir": fpir}
    with connect(url) as client:
        wait_for_job(client, client.post(f"/v1/collections/{collection}:forecast", json=body), "forecast")
        report = read_answer(client.get(f"/v1/collections/{collection}/forecast"))
    console.print(f"{report['faces']:,} faces of {report['people']:,} people; {report['distractors']:,} distractors")
    if not report["points"]:
        console.print(f"No forecast yet: {report['unmeasured_reason']}.", soft_wrap=True)
        return
    console.print(_build_table(report))
    _print_check(report["check"])
    if plot is not None:
        plot.write_text(draw_growth(report["points"], report["fpir"]))
        console.print(f"wrote {plot}")


def _build_table(report: dict[str, Any]) -> Table:
    title = f"at today's threshold for {100 * report['fpir']:g} % of strangers; 95 % intervals"
    has_distractors = report["distractors"] > 0
    heads = ["faces", "", "strangers named", *["distractors named"] * has_distractors, "people found"]
    table = Table(*heads, "threshold that keeps the rate", "people found with it", title=title)
    for point in report["points"]:
        kept = point["kept_distance"]
        cells = [
            f"{point['faces']:,}",
            "measured" if point["is_measured"] else "predicted",
            _format_share(point["strangers_named"]),
            *[_format_share(point["distractors_named"])] * has_distractors,
            _format_share(point["people_found"]),
            "" if kept is None else f"{kept:.4f}",
            _format_share(point["found_at_kept"]),
        ]
        table.add_row(*cells)
    return table


def _format_share(share: dict[str, float] | None) -> str:
    if share is None:
        return ""
    return f"{100 * share['value']:.2f} % ({100 * share['low']:.2f} to {100 * share['high']:.2f})"


def _print_check(check: dict[str, Any] | None) -> None:
    if check is None:
        console.print("a tenth of the collection has too few people for a check of the forecast")
        return
    console.print(f"check: what {check['people']:,} of the people predict for all of them")
    for name in ("strangers_named", "distractors_named", "people_found"):
        compared = check[name]
        if compared is not None:
            verdict = "inside the interval" if compared["is_inside"] else "outside the interval: trust it less"
            console.print(
                f"  {name.replace('_', ' ')}: predicted {_format_share(compared['predicted'])}, "
                f"measured {100 * compared['measured']['value']:.2f} %: {verdict}"
            )
