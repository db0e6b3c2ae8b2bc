"""`likeness demo`: the whole loop, through the API alone, on a service of its own."""

import io
import random
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.table import Table

from app.cli.client import bar, console, counted, pages, read_answer, wait
from app.cli.private_service import service
from ml import images
from ml.synthetic_faces import draw, person

PEOPLE, SHOTS = 120, 6
COLLECTION = "demo"
LABELLED = 0.5
PAIRS_A_PERSON = 6

Faces = dict[str, list[str]]


@dataclass(frozen=True)
class DemoAccuracy:
    """Of people whom nobody labelled: how often the right one stands first, and among the first ten."""

    at_1: float
    at_10: float
    milliseconds: float


def demo(
    data: Annotated[Path | None, typer.Option(exists=True, help="folder, tar or zip of <person>/<photo>")] = None,
    people: Annotated[int, typer.Option(help="how many people are drawn, without --data")] = PEOPLE,
) -> None:
    """Upload a gallery, search it, label pairs, learn from them, publish, search better, roll back; all on LBP, which
    has most to learn."""
    began = time.monotonic()
    roots = f'["{data.resolve()}"]' if data and data.is_dir() else "[]"
    with (
        tempfile.TemporaryDirectory(prefix="likeness-demo-") as home,
        service(Path(home), import_roots=roots, default_recogniser="lbp") as client,
    ):
        console.rule("1  upload")
        read_answer(client.put(f"/v1/collections/{COLLECTION}", json={"description": "demo"}))
        _upload(client, data, people)
        faces = _faces(client)
        known, unseen = _split(faces)
        console.rule("2  search: people who will not be labelled")
        before = _measure(client, unseen, "search before")
        console.rule("3  label pairs of the other half, and learn from them")
        model = _learn(client, known)
        console.rule("4  publish while serving, search again")
        path = f"/v1/collections/{COLLECTION}/deployments/identity"
        _publish(client, path, model)
        after = _measure(client, unseen, "search after")
        console.rule("5  roll back, and forward again")
        wait(client, client.post(f"{path}:rollback"), "roll back")
        rolled = _measure(client, unseen, "search, rolled back")
    _show(before, after, rolled, len(unseen))
    console.print(f"{time.monotonic() - began:.0f} s in all; nothing of it is kept.")


def _publish(client: httpx.Client, path: str, model: str) -> None:
    """The gate may refuse, as it would anybody; the demo then goes on by an override, which stays on record."""
    try:
        wait(client, client.post(f"{path}:publish", json={"model": model}), "measure, re-embed and publish")
    except typer.Exit:
        console.print("The gate has refused. The demo goes on by an override, which the deployment's history keeps.")
        forced = {"model": model, "override": True, "reason": "the demo goes on"}
        wait(client, client.post(f"{path}:publish", json=forced), "re-embed and publish")


def _upload(client: httpx.Client, data: Path | None, people: int) -> None:
    path = f"/v1/collections/{COLLECTION}:import"
    if data is None:
        answer = client.post(path, params={"aligned": "true"}, content=_drawn(people))
    elif data.is_dir():
        answer = client.post(path, json={"directory": str(data.resolve())})
    else:
        with data.open("rb") as body:
            answer = client.post(path, content=body, headers={"Content-Type": "application/octet-stream"})
    job = wait(client, answer, "import")
    console.print(f"{job['progress']['done']:,} enrolled, {job['progress']['failed']:,} refused")
    for item in read_answer(client.get(f"/v1/jobs/{job['id']}/items", params={"state": "failed", "limit": 3}))["items"]:
        console.print(f"  refused {item['name']}: {', '.join(item['reasons'])}")


def _drawn(people: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive, bar() as progress:
        for i in progress.track(range(people), description=f"draw {people} people who do not exist"):
            for shot in range(SHOTS):
                archive.writestr(f"person-{i:04d}/{shot}.png", images.encode_png(draw(person(i), shot)))
    return packed.getvalue()


def _faces(client: httpx.Client) -> Faces:
    """Ids of the faces of each subject."""
    faces: Faces = defaultdict(list)
    for face in pages(client, f"/v1/collections/{COLLECTION}/faces", "faces"):
        if face["subject"]:
            faces[face["subject"]["id"]].append(face["face_id"])
    return {name: ids for name, ids in faces.items() if len(ids) > 1}


def _split(faces: Faces) -> tuple[Faces, Faces]:
    names = sorted(faces)
    random.Random(0).shuffle(names)
    cut = round(LABELLED * len(names))
    return {n: faces[n] for n in names[:cut]}, {n: faces[n] for n in names[cut:]}


def _measure(client: httpx.Client, unseen: Faces, what: str) -> DemoAccuracy:
    """Each person's first face is searched for among all others."""
    times: list[float] = []

    def rank(query: tuple[str, str]) -> int:
        name, face = query
        began = time.perf_counter()
        body = read_answer(client.post(f"/v1/collections/{COLLECTION}/faces/{face}/search", params={"limit": 11}))
        times.append(time.perf_counter() - began)
        matches = [m for m in body["faces"][0]["matches"] if m["face_id"] != face][:10]
        return next((i for i, m in enumerate(matches) if (m["subject"] or {}).get("id") == name), 99)

    ranks = counted(what, [(name, ids[0]) for name, ids in unseen.items()], rank)
    first, tenth = (sum(r < k for r in ranks) / len(ranks) for k in (1, 10))
    return DemoAccuracy(first, tenth, 1000 * sorted(times)[len(times) // 2])


def _pairs(known: Faces) -> Iterator[dict[str, Any]]:
    """What people would say: a few pairs of each person the same, as many with others not."""
    chance, names = random.Random(1), sorted(known)
    for name in names:
        same = list(combinations(known[name], 2))
        for a, b in chance.sample(same, min(PAIRS_A_PERSON, len(same))):
            yield {"face_a": a, "face_b": b, "task": "identity", "same": True}
            other = chance.choice([n for n in names if n != name])
            yield {"face_a": a, "face_b": chance.choice(known[other]), "task": "identity", "same": False}


def _learn(client: httpx.Client, known: Faces) -> str:
    pairs = list(_pairs(known))
    blocks = [pairs[i : i + 500] for i in range(0, len(pairs), 500)]
    answers = counted("label", blocks, lambda block: read_answer(client.post("/v1/labels", json={"labels": block})))
    console.print(
        f"{sum(s['accepted'] for s in answers):,} labels accepted, {sum(len(s['refused']) for s in answers)} refused"
    )
    body = {
        "collection": COLLECTION,
        "method": "ldml",
        "sources": [{"task": "identity", "collection": COLLECTION, "from": "labels"}],
    }
    job = wait(client, client.post("/v1/trainings", json=body), "train LDML from the labels alone")
    return str(job["result"]["model"])


def _show(before: DemoAccuracy, after: DemoAccuracy, rolled: DemoAccuracy, people: int) -> None:
    table = Table(
        "", "the right person first", "among the first ten", "median answer", title=f"{people:,} people never labelled"
    )
    for name, row in (("before", before), ("after the labels", after), ("rolled back", rolled)):
        table.add_row(name, f"{row.at_1:.1%}", f"{row.at_10:.1%}", f"{row.milliseconds:.1f} ms")
    console.print(table)
