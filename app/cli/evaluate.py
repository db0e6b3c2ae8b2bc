"""`likeness evaluate lfw`: the published protocol through the API, on a service of its own."""

import json
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.table import Table

from app.cli import lfw
from app.cli.client import console, told, wait
from app.cli.private import service

COLLECTION = "lfw"
CLOSED, UNSEEN = "queries", "disjoint"
METHODS: dict[str, dict[str, Any]] = {
    "L2": {"method": "l2"},
    "WPCA-cosine 32": {"method": "wpca", "dim": 32, "options": {"unit": True}},
    "LDML 32": {"method": "ldml", "dim": 32},
    "CLML 32, k=16": {"method": "clml", "dim": 32, "options": {"k": 16}},
}


def evaluate(
    dataset: Annotated[str, typer.Argument(help="lfw")],
    data: Annotated[Path, typer.Option(exists=True, file_okay=False, help="folder with the archives and lfw-protocol")],
    draws: Annotated[int, typer.Option(min=1, max=10, help="protocol files of each kind, averaged")] = 3,
    only: Annotated[
        list[str] | None, typer.Option(help="only the methods whose names begin so; may be repeated")
    ] = None,
    onnx: Annotated[
        Path | None, typer.Option(exists=True, help="manifest of an ONNX recogniser, as one more row")
    ] = None,
    cnn: Annotated[Path | None, typer.Option(exists=True, help="manifest of a CNN of yours, likewise")] = None,
    home: Annotated[Path, typer.Option(help="kept, so that the next run imports nothing")] = Path(".likeness/evaluate"),
    out: Annotated[Path | None, typer.Option(help="write the rows as JSON")] = None,
) -> None:
    """Import LFW through HTTP once; then, for each method, fit on the training side and rank the whole gallery."""
    if dataset != "lfw":
        raise typer.BadParameter("there is: lfw", param_hint="DATASET")
    given = {"onnx": onnx, "cnn": cnn}
    named = {
        f"{kind}_manifests": json.dumps({f"{kind}-row": str(path.resolve())} if path else {})
        for kind, path in given.items()
    }
    methods = METHODS | {
        f"{kind.upper()}, cosine": {"method": "cosine", "descriptor": f"{kind}-row"}
        for kind, path in given.items()
        if path
    }
    methods = {n: m for n, m in methods.items() if not only or n.lower().startswith(tuple(o.lower() for o in only))}
    source = lfw.Lfw(data)
    with service(home, **named) as client:
        _import(client, source)
        rows = [
            _row(client, source, name, asked, protocol, draws)
            for name, asked in methods.items()
            for protocol in (CLOSED, UNSEEN)
        ]
    _show(rows, draws)
    if out is not None:
        out.write_text(json.dumps(rows, indent=1))


def _import(client: httpx.Client, source: lfw.Lfw) -> None:
    told(client.put(f"/v1/collections/{COLLECTION}", json={"description": "Labeled Faces in the Wild"}))
    if told(client.get(f"/v1/collections/{COLLECTION}"))["face_count"]:
        return
    for archive in source.archives:
        with archive.open("rb") as body:
            headers = {"Content-Type": "application/x-tar"}
            answer = client.post(f"/v1/collections/{COLLECTION}:import", content=body, headers=headers)
        job = wait(client, answer, f"import {archive.name}")
        console.print(f"{job['progress']['done']:,} enrolled, {job['progress']['failed']:,} refused")


def _row(
    client: httpx.Client, source: lfw.Lfw, name: str, asked: dict[str, Any], protocol: str, draws: int
) -> dict[str, Any]:
    files = [source.protocol / f"{protocol}-{i}.txt" for i in range(draws)]
    body = {
        "collection": COLLECTION,
        "protocol": "disjoint" if protocol == UNSEEN else "retrieval",
        "files": [{"name": f.name, "text": f.read_text()} for f in files],
        "training": {"descriptor": "lbp"} | asked,
    }
    job = wait(client, client.post("/v1/evaluations", json=body), f"{name}, {protocol}")
    return {"method": name, "protocol": protocol, "report": job["result"]["report"]}


def _show(rows: list[dict[str, Any]], draws: int) -> None:
    title = f"LFW deep-funneled, mean of {draws} draws ± SD; closed: 423 queries; unseen: people apart from training"
    table = Table("method", "protocol", "mAP", "1-call@1", "1-call@10", "seconds a fit", title=title)
    for row in rows:
        shown = [_cell(row["report"], metric) for metric in ("map", "1-call@1", "1-call@10")]
        seconds = row["report"]["mean"].get("fit_seconds", 0.0)
        table.add_row(row["method"], row["protocol"], *shown, f"{seconds:.0f}")
    console.print(table)


def _cell(report: dict[str, Any], metric: str) -> str:
    return f"{100 * report['mean'][metric]:.1f} ± {100 * report['sd'][metric]:.1f}"
