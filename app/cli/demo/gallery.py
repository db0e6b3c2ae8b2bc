"""The gallery of the demos: synthetic people, or photos of the user's own."""

import io
import random
import zipfile
from collections import defaultdict
from pathlib import Path

import httpx

from app.cli.client import console, iterate_pages, open_progress, read_answer, wait_for_job
from ml import images
from ml.synthetic_faces import draw, person

DEFAULT_PEOPLE, PHOTOS_PER_PERSON = 120, 6
COLLECTION = "demo"
LABELLED_SHARE = 0.5

Faces = dict[str, list[str]]
"""Subject -> ids of the faces."""


def import_root(data: Path | None) -> str:
    """Return the setting that lets the service read this folder."""
    return f'["{data.resolve()}"]' if data and data.is_dir() else "[]"


def upload_gallery(client: httpx.Client, data: Path | None, people: int, singles: int = 0) -> None:
    """Import the data, or draw people. singles: how many more people to draw who have one photo each"""
    path = f"/v1/collections/{COLLECTION}:import"
    if data is None:
        answer = client.post(path, params={"aligned": "true"}, content=_draw_archive(people, singles))
    elif data.is_dir():
        answer = client.post(path, json={"directory": str(data.resolve())})
    else:
        with data.open("rb") as body:
            answer = client.post(path, content=body, headers={"Content-Type": "application/octet-stream"})
    job = wait_for_job(client, answer, "import")
    console.print(f"{job['progress']['done']:,} enrolled, {job['progress']['failed']:,} refused")
    for item in read_answer(client.get(f"/v1/jobs/{job['id']}/items", params={"state": "failed", "limit": 3}))["items"]:
        console.print(f"  refused {item['name']}: {', '.join(item['reasons'])}")


def _draw_archive(people: int, singles: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive, open_progress() as progress:
        for i in progress.track(range(people + singles), description=f"draw {people} people who do not exist"):
            for shot in range(PHOTOS_PER_PERSON if i < people else 1):
                archive.writestr(f"person-{i:04d}/{shot}.png", images.encode_png(draw(person(i), shot)))
    return packed.getvalue()


def read_faces(client: httpx.Client) -> Faces:
    """Read the faces of every subject."""
    faces: Faces = defaultdict(list)
    for face in iterate_pages(client, f"/v1/collections/{COLLECTION}/faces", "faces"):
        if face["subject"]:
            faces[face["subject"]["id"]].append(face["face_id"])
    return dict(faces)


def split_people(faces: Faces) -> tuple[Faces, Faces]:
    """Split those who have more than one face into people who are labelled and people who never are."""
    names = sorted(name for name, ids in faces.items() if len(ids) > 1)
    random.Random(0).shuffle(names)
    cut = round(LABELLED_SHARE * len(names))
    return {n: faces[n] for n in names[:cut]}, {n: faces[n] for n in names[cut:]}
