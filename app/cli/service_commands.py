"""Commands that use a running service: import, search, train, publish."""

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
PART_LABELS = {"common": "common to all tasks", "own": "its own", "both": "both"}
SHARES = ("distance_share", "variance_share", "separation_share")
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
        verdict = face["decision"] or "not calibrated"
        name = f": {face['subject']['id']}" if face["subject"] else ""
        table = Table("subject", "face", "similarity", "distance", title=f"{verdict}{name}")
        for match in face["matches"]:
            subject = (match["subject"] or {}).get("id", "")
            similarity = "" if match["similarity"] is None else f"{match['similarity']:.1f}"
            table.add_row(subject, match["face_id"], similarity, f"{match['distance']:.4f}")
        console.print(table)


def train(
    collection: Collection,
    method: Annotated[
        str, typer.Option(help="auto chooses one; wccn, ldml, clml, cpmtml, ...; cosine learns nothing")
    ] = "auto",
    descriptor: Annotated[
        str | None, typer.Option(help="a name of `likeness recognisers list`; default: that of the serving model")
    ] = None,
    dim: Annotated[int | None, typer.Option(min=1, help="size of the embedding; default: the method's")] = None,
    url: Url = None,
) -> None:
    """Learn a metric from the collection's subjects and labels. Prints the candidate's report."""
    stated = {"descriptor": descriptor, "dim": dim}
    body = {"collection": collection, "method": method} | {k: v for k, v in stated.items() if v is not None}
    with connect(url) as client:
        result = wait_for_job(client, client.post("/v1/trainings", json=body), f"train {method}")["result"]
        console.print_json(json.dumps(result))
        choice = (result["report"] or {}).get("choice")
        if choice:
            console.print(choice["reason"])
    for task, of_task in ((result["report"] or {}).get("tasks") or {}).items():
        if of_task.get("projections"):
            console.print(build_projection_table(task, of_task["projections"]))


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
        console.print_json(
            json.dumps(wait_for_job(client, client.post(path, json=body), "publish").get("result") or {})
        )


def build_projection_table(task: str, projections: dict[str, Any]) -> Table:
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
