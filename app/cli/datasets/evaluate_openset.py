"""`likeness evaluate openset`: measure through the API how often searches name enrolled people and strangers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import typer
from rich.table import Table

from app.cli.client import console, read_answer, wait_for_job
from app.cli.datasets.lfw import LfwDataset
from app.config import Settings
from app.storage.recognisers.catalogue import DLIB_OPTIONS, DLIB_RESNET, LBP, list_recognisers

COLLECTION = "openset"
RATE_LABELS = {"0.01": "1 %", "0.1": "10 %"}
EXPLANATION = (
    "FNIR: share of enrolled people's searches that do not name the right person. At FPIR x: at the threshold where "
    "this share of strangers is named. Own threshold: the one that the gallery chooses for a rate of 1 %, without the "
    "strangers. [95 % over people]"
)


@dataclass(frozen=True)
class RecogniserRow:
    """A row of the table: the `descriptor` and the `method` of a training."""

    name: str
    descriptor: dict[str, Any]
    method: str = "cosine"


def choose_rows(names: list[str] | None, manifests: list[str], home: Path) -> list[RecogniserRow]:
    """The recognisers of these names, by default those installed in `home`, then those of manifests, by name.

    Raises typer.BadParameter for a name that is not there.
    """
    installed = {r.name: r.spec for r in list_recognisers(Settings(home=home)) if r.spec is not None}
    unknown = set(names or ()) - installed.keys()
    if unknown:
        raise typer.BadParameter(
            f"no recogniser {', '.join(sorted(unknown))} is installed; there are: {', '.join(installed)}",
            param_hint="--recogniser",
        )
    chosen = names or [n for n in (DLIB_RESNET.name, LBP.name) if n in installed]
    options = {DLIB_RESNET.name: DLIB_OPTIONS}
    rows = [
        RecogniserRow(name, {"name": name, "options": options.get(name, {})}, "l2" if name == LBP.name else "cosine")
        for name in chosen
    ]
    return rows + [RecogniserRow(f"{name}, cosine", {"name": name}) for name in manifests]


def evaluate_openset(client: httpx.Client, data: Path, rows: list[RecogniserRow], draws: int) -> list[dict[str, Any]]:
    """Import the photos unless they are there already, and evaluate each row by the protocol `openset`."""
    _import_photos(client, data)
    results = []
    for row in rows:
        body = {
            "collection": COLLECTION,
            "protocol": "openset",
            "draws": draws,
            "training": {"method": row.method, "descriptor": row.descriptor},
        }
        job = wait_for_job(client, client.post("/v1/evaluations", json=body), row.name)
        results.append({"recogniser": row.name, "method": row.method, **job["result"]})
    return results


def _import_photos(client: httpx.Client, data: Path) -> None:
    """Import LFW's archives if the folder has them, otherwise the folder itself as <person>/<photo>."""
    path = f"/v1/collections/{COLLECTION}"
    read_answer(client.put(path, json={"description": f"open-set evaluation of {data.name}"}))
    if read_answer(client.get(path))["face_count"]:
        return
    archives = LfwDataset(data).archives
    for archive in archives:
        with archive.open("rb") as body:
            answer = client.post(f"{path}:import", content=body, headers={"Content-Type": "application/x-tar"})
        wait_for_job(client, answer, f"import {archive.name}")
    if not archives:
        wait_for_job(
            client, client.post(f"{path}:import", json={"directory": str(data.resolve())}), f"import {data.name}"
        )


def show_openset(results: list[dict[str, Any]], draws: int) -> None:
    """Print a table with one line for each recogniser."""
    columns = [f"FNIR at FPIR {rate}" for rate in RATE_LABELS.values()]
    table = Table(
        "recogniser", "right first", *columns, "own threshold: FPIR", "FNIR", title=f"Open set, {draws} draws, %"
    )
    for result in results:
        report = result["report"]
        open_set = report["open_set"]
        if open_set is None:
            console.print(f"{result['recogniser']}: the draws did not have both enrolled people and strangers")
            continue
        own = open_set["decided"]["0.01"]
        decided = [format_interval(own["fpir"]), format_interval(own["fnir"])] if own else ["too few people", "-"]
        right = format_interval(report["pooled"]["ncall"]["1"])
        table.add_row(
            result["recogniser"], right, *(format_interval(open_set["fnir"][rate]) for rate in RATE_LABELS), *decided
        )
    console.print(table)
    console.print(EXPLANATION, soft_wrap=True)


def format_interval(interval: dict[str, float]) -> str:
    return f"{100 * interval['value']:.1f} [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"


def write_json(results: list[dict[str, Any]], out: Path | None) -> None:
    if out is not None:
        out.write_text(json.dumps(results, indent=1))
