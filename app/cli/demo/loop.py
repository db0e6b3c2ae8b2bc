"""`likeness demo`: from upload to a learned model and back, through the API of a temporary service."""

import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.table import Table

from app.cli.client import console, map_with_progress, read_answer, wait_for_job
from app.cli.demo.gallery import (
    COLLECTION,
    DEFAULT_PEOPLE,
    Faces,
    import_root,
    read_faces,
    split_people,
    upload_gallery,
)
from app.cli.private_service import run_service

PAIRS_PER_PERSON = 6


@dataclass(frozen=True)
class DemoAccuracy:
    """Searches for people who were not labelled. at_1, at_10: share of searches with the right person first, and among
    the first ten; milliseconds: median time of an answer"""

    at_1: float
    at_10: float
    milliseconds: float


def demo(
    context: typer.Context,
    data: Annotated[Path | None, typer.Option(exists=True, help="folder, tar or zip of <person>/<photo>")] = None,
    people: Annotated[int, typer.Option(help="number of synthetic people, without --data")] = DEFAULT_PEOPLE,
) -> None:
    """Upload a gallery, search it, label pairs, learn from them, publish, search again, roll back. It describes faces
    by LBP, which gains most from labels."""
    if context.invoked_subcommand:
        return
    started_at = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="likeness-demo-") as home,
        run_service(Path(home), import_roots=import_root(data), default_recogniser="lbp") as client,
    ):
        console.rule("1  upload")
        read_answer(client.put(f"/v1/collections/{COLLECTION}", json={"description": "demo"}))
        upload_gallery(client, data, people)
        known, unseen = split_people(read_faces(client))
        console.rule("2  search: people who will not be labelled")
        before = _measure_accuracy(client, unseen, "search before")
        console.rule("3  label pairs of the other people, and learn from them")
        model = _train_model(client, known)
        console.rule("4  publish while serving, search again")
        path = f"/v1/collections/{COLLECTION}/deployments/identity"
        _publish_model(client, path, model)
        after = _measure_accuracy(client, unseen, "search after")
        console.rule("5  roll back, and forward again")
        wait_for_job(client, client.post(f"{path}:rollback"), "roll back")
        rolled = _measure_accuracy(client, unseen, "search, rolled back")
    _print_accuracy(before, after, rolled, len(unseen))
    console.print(f"{time.monotonic() - started_at:.0f} s in all. Nothing is kept.")


def _publish_model(client: httpx.Client, path: str, model: str) -> None:
    """Publish the model. If the gate refuses, publish by an override, which the history records."""
    try:
        wait_for_job(client, client.post(f"{path}:publish", json={"model": model}), "measure, re-embed and publish")
    except typer.Exit:
        console.print(
            "The gate has refused. The demo continues with an override, which the deployment's history shows."
        )
        body = {"model": model, "override": True, "reason": "the demo goes on"}
        wait_for_job(client, client.post(f"{path}:publish", json=body), "re-embed and publish")


def _measure_accuracy(client: httpx.Client, unseen: Faces, what: str) -> DemoAccuracy:
    """Search for each person's first face among all others."""
    times: list[float] = []

    def rank(query: tuple[str, str]) -> int:
        name, face = query
        started_at = time.perf_counter()
        body = read_answer(client.post(f"/v1/collections/{COLLECTION}/faces/{face}/search", params={"limit": 11}))
        times.append(time.perf_counter() - started_at)
        matches = [m for m in body["faces"][0]["matches"] if m["face_id"] != face][:10]
        return next((i for i, m in enumerate(matches) if (m["subject"] or {}).get("id") == name), 99)

    ranks = map_with_progress(what, [(name, ids[0]) for name, ids in unseen.items()], rank)
    first, tenth = (sum(r < k for r in ranks) / len(ranks) for k in (1, 10))
    return DemoAccuracy(first, tenth, 1000 * sorted(times)[len(times) // 2])


def _iterate_labels(known: Faces) -> Iterator[dict[str, Any]]:
    """Yield the labels that people would give: a few pairs of each person, and as many pairs with other people."""
    rng, names = random.Random(1), sorted(known)
    for name in names:
        same = list(combinations(known[name], 2))
        for a, b in rng.sample(same, min(PAIRS_PER_PERSON, len(same))):
            yield {"face_a": a, "face_b": b, "task": "identity", "same": True}
            other = rng.choice([n for n in names if n != name])
            yield {"face_a": a, "face_b": rng.choice(known[other]), "task": "identity", "same": False}


def _train_model(client: httpx.Client, known: Faces) -> str:
    pairs = list(_iterate_labels(known))
    blocks = [pairs[i : i + 500] for i in range(0, len(pairs), 500)]
    answers = map_with_progress(
        "label", blocks, lambda block: read_answer(client.post("/v1/labels", json={"labels": block}))
    )
    console.print(
        f"{sum(s['accepted'] for s in answers):,} labels accepted, {sum(len(s['refused']) for s in answers)} refused"
    )
    body = {
        "collection": COLLECTION,
        "method": "ldml",
        "sources": [{"task": "identity", "collection": COLLECTION, "from": "labels"}],
    }
    job = wait_for_job(client, client.post("/v1/trainings", json=body), "train LDML on the labels only")
    return str(job["result"]["model"])


def _print_accuracy(before: DemoAccuracy, after: DemoAccuracy, rolled: DemoAccuracy, people: int) -> None:
    table = Table(
        "", "the right person first", "among the first ten", "median answer", title=f"{people:,} people never labelled"
    )
    for name, row in (("before", before), ("after the labels", after), ("rolled back", rolled)):
        table.add_row(name, f"{row.at_1:.1%}", f"{row.at_10:.1%}", f"{row.milliseconds:.1f} ms")
    console.print(table)
