"""Commands that use a running service: import, search, publish."""

import json
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.table import Table

from app.cli.client import connect, console, read_answer, wait_for_job
from app.cli.vector_import import SUFFIX, import_vectors

Url = Annotated[str | None, typer.Option(help="address of the service; default LIKENESS_URL")]
MAX_SHOWN_ITEMS = 20
Collection = Annotated[str, typer.Argument(help="id of the collection")]


def import_(
    collection: Collection,
    archive: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, help="tar or zip of <person>/<photo>, or a .npy file of vectors"),
    ],
    role: Annotated[str, typer.Option(help="gallery or distractor")] = "gallery",
    aligned: Annotated[bool, typer.Option(help="the photos are face crops already")] = False,
    source: Annotated[str, typer.Option(help="what the photos come from: a camera, a scanner, masked")] = "",
    table: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="of vectors: CSV or JSON lines, one row a vector")
    ] = None,
    metric: Annotated[str, typer.Option(help="of vectors, for a new collection: cosine or l2")] = "cosine",
    made_by: Annotated[str, typer.Option(help="of vectors, for a new collection: what made them")] = "external",
    url: Url = None,
) -> None:
    """Upload an archive of photos, or a file of vectors. Shows the progress and what was refused."""
    with connect(url) as client:
        if archive.suffix == SUFFIX:
            descriptor = {"name": made_by, "metric": metric}
            job = import_vectors(client, collection, archive, table, descriptor)
        else:
            query = {"role": role, "aligned": str(aligned).lower()} | ({"source": source} if source else {})
            job = _import_archive(client, collection, archive, query)
        console.print_json(json.dumps(job["result"]))
        refused = client.get(f"/v1/jobs/{job['id']}/items", params={"state": "failed", "limit": MAX_SHOWN_ITEMS})
        for item in read_answer(refused)["items"]:
            console.print(f"refused {item['name']}: {', '.join(item['reasons'])}")


def _import_archive(client: httpx.Client, collection: str, archive: Path, query: dict[str, str]) -> dict[str, Any]:
    read_answer(client.put(f"/v1/collections/{collection}"))
    headers = {"Content-Type": "application/octet-stream"}
    path = f"/v1/collections/{collection}:import"
    with archive.open("rb") as body:
        answer = client.post(path, params=query, content=body, headers=headers)
    return wait_for_job(client, answer, f"import {archive.name}")


def search(
    collection: Collection,
    photo: Annotated[Path, typer.Argument(exists=True, dir_okay=False)],
    limit: Annotated[int, typer.Option(min=1, max=4096)] = 10,
    fpir: Annotated[
        float | None, typer.Option(help="share of strangers' searches that may name somebody; default 0.01")
    ] = None,
    fmr: Annotated[float | None, typer.Option(help="only matches at this false-match rate of pairs")] = None,
    aligned: Annotated[bool, typer.Option(help="the photo is a face crop already")] = False,
    source: Annotated[str, typer.Option(help="what the photo comes from: a camera, a scanner, masked")] = "",
    url: Url = None,
) -> None:
    """Search a collection for the largest face of a photo."""
    rates = {name: str(rate) for name, rate in (("fpir", fpir), ("fmr", fmr)) if rate is not None}
    query = {"limit": str(limit), "aligned": str(aligned).lower()} | ({"source": source} if source else {}) | rates
    with connect(url) as client:
        path = f"/v1/collections/{collection}/search"
        body = read_answer(client.post(path, params=query, files={"file": photo.read_bytes()}))
    for face in body["faces"]:
        print_matches(face)
    note = (body["threshold"] or {}).get("note")
    if not body["calibrated"]:
        note = "nobody is named before the gallery has been measured, for which it needs a hundred faces"
    if note:
        console.print(f"Note: {note}.", soft_wrap=True)


def print_matches(face: dict[str, Any]) -> None:
    """Print the matches of a face of the photo, under the decision about it."""
    verdict = face["decision"] or "not calibrated"
    name = f": {face['subject']['id']}" if face["subject"] else ""
    table = Table("subject", "face", "similarity", "distance", title=f"{verdict}{name}")
    for match in face["matches"]:
        subject = (match["subject"] or {}).get("id", "")
        similarity = "" if match["similarity"] is None else f"{match['similarity']:.1f}"
        table.add_row(subject, match["face_id"], similarity, f"{match['distance']:.4f}")
    console.print(table)


def publish(
    collection: Collection,
    model: Annotated[str, typer.Argument(help="id of the model")],
    task: Annotated[str, typer.Option(help="the task of the deployment")] = "identity",
    override: Annotated[str, typer.Option(help="publish against the gate, for this reason")] = "",
    url: Url = None,
) -> None:
    """Publish a model in a collection. The gate may refuse it."""
    body = {"model": model} | ({"override": True, "reason": override} if override else {})
    with connect(url) as client:
        path = f"/v1/collections/{collection}/deployments/{task}:publish"
        result = wait_for_job(client, client.post(path, json=body), "publish").get("result")
    _print_publication(collection, result or {"model": model, "tasks": [task], "served": True, "verdict": {}})


def _print_publication(collection: str, result: dict[str, Any]) -> None:
    state = "serves" if result["served"] else "is published, but not every API process serves it yet:"
    console.print(f"{result['model']} {state} {', '.join(result['tasks'])} in {collection}.", soft_wrap=True)
    for reason in result["verdict"].get("reasons") or ():
        console.print(f"Published against the gate: {reason}", soft_wrap=True)
    for task, labels in (result["verdict"].get("labels") or {}).items():
        if labels["broken"]:
            console.print(f"{len(labels['broken']):,} labels of {task} are broken by it; searches keep to the labels.")
