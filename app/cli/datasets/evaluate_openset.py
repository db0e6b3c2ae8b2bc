"""`likeness evaluate openset`: who is named, and who wrongly, where strangers search too; through the API."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import typer
from rich.table import Table

from app.cli.client import console, read_answer, wait
from app.cli.datasets.lfw import LfwDataset
from app.config import Settings
from app.storage.recognisers.catalogue import DLIB_OPTIONS, DLIB_RESNET, LBP, list_recognisers

COLLECTION = "openset"
RATES = {"0.01": "1 %", "0.1": "10 %"}
EXPLAINED = (
    "FNIR: share of searches for enrolled people that do not name the right one. At FPIR x: where so many strangers "
    "are named. Own threshold: where the gallery, without the strangers, puts it for a rate of 1 %. [95 % over people]"
)


@dataclass(frozen=True)
class RecogniserRow:
    """A row of the table: what faces are described by (a training's `descriptor`), and compared by (its `method`)."""

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
    """Import the photos where they are not there yet; a measurement by the protocol `openset` for each row."""
    _import_photos(client, data)
    results = []
    for row in rows:
        body = {
            "collection": COLLECTION,
            "protocol": "openset",
            "draws": draws,
            "training": {"method": row.method, "descriptor": row.descriptor},
        }
        job = wait(client, client.post("/v1/evaluations", json=body), row.name)
        results.append({"recogniser": row.name, "method": row.method, **job["result"]})
    return results


def _import_photos(client: httpx.Client, data: Path) -> None:
    """LFW's archives where the folder holds them, else the folder itself as <person>/<photo>."""
    path = f"/v1/collections/{COLLECTION}"
    read_answer(client.put(path, json={"description": f"open-set evaluation of {data.name}"}))
    if read_answer(client.get(path))["face_count"]:
        return
    archives = LfwDataset(data).archives
    for archive in archives:
        with archive.open("rb") as body:
            answer = client.post(f"{path}:import", content=body, headers={"Content-Type": "application/x-tar"})
        wait(client, answer, f"import {archive.name}")
    if not archives:
        wait(client, client.post(f"{path}:import", json={"directory": str(data.resolve())}), f"import {data.name}")


def show_openset(results: list[dict[str, Any]], draws: int) -> None:
    """One line a recogniser."""
    columns = [f"FNIR at FPIR {rate}" for rate in RATES.values()]
    table = Table(
        "recogniser", "right first", *columns, "own threshold: FPIR", "FNIR", title=f"Open set, {draws} draws, %"
    )
    for result in results:
        report = result["report"]
        open_set = report["open_set"]
        if open_set is None:
            console.print(f"{result['recogniser']}: there were not both people enrolled and strangers among the probes")
            continue
        own = open_set["decided"]["0.01"]
        decided = [describe(own["fpir"]), describe(own["fnir"])] if own else ["too few people", "-"]
        right = describe(report["pooled"]["ncall"]["1"])
        table.add_row(result["recogniser"], right, *(describe(open_set["fnir"][rate]) for rate in RATES), *decided)
    console.print(table)
    console.print(EXPLAINED, soft_wrap=True)


def describe(interval: dict[str, float]) -> str:
    return f"{100 * interval['value']:.1f} [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"


def write_json(results: list[dict[str, Any]], out: Path | None) -> None:
    if out is not None:
        out.write_text(json.dumps(results, indent=1))
