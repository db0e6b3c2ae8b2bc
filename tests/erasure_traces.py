"""A collection with a person who leaves traces everywhere, and a search for these traces in every store."""

import io
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from sqlalchemy import Engine, MetaData, select

from app.db.session import reading
from app.db.tables import Embedding, Face
from app.storage.model_cache import LBP_MODEL
from tests.gallery import draw_photo
from tests.service import Service

SUBJECT, OTHER = "ludovica-erasmus-41", "bystander-17"
NOTE, BADGE, FILE = "she-wore-a-vermilion-scarf", "badge-9917-vermilion", "ludovica-portrait-0001.png"
EXTERNAL_ID, DESK = "personnel-number-550193", "desk-beside-the-orangery"


@dataclass
class Traces:
    """What must not be found after an erasure. name -> bytes"""

    patterns: dict[str, bytes] = field(default_factory=dict)
    faces: list[str] = field(default_factory=list)


def leave_traces(service: Service, collection: str, people: int = 1) -> Traces:
    """Enrol a person by request and by import, label and search. people: how many others are enrolled"""
    client, base = service.client, f"/v1/collections/{collection}"
    client.put(base).raise_for_status()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(f"{SUBJECT}/{FILE}", draw_photo(1, 1))
        archive.writestr(f"{SUBJECT}/broken-{FILE}", b"no photo")
        for n in range(people):
            for shot in range(2):
                archive.writestr(f"{OTHER}{n}/{n}-{shot}.png", draw_photo(100 + n, shot))
    imported = client.post(f"{base}:import", params={"aligned": True}, content=packed.getvalue())
    assert service.wait(imported)["progress"]["failed"] == 1
    form = {"subject": SUBJECT, "aligned": "true", "metadata": json.dumps({"badge": BADGE})}
    enrolled = _post(client, f"{base}/faces", "enrol", data=form, files={"file": draw_photo(1, 2)})
    first = enrolled.json()["face_records"][0]["face_id"]
    body = {"external_id": EXTERNAL_ID, "metadata": {"desk": DESK}}
    client.patch(f"{base}/subjects/{SUBJECT}", json=body).raise_for_status()
    listed = client.get(f"{base}/faces", params={"subject": SUBJECT}).json()["faces"]
    [other] = [face["face_id"] for face in listed if face["face_id"] != first]
    label = {"labels": [{"face_a": first, "face_b": other, "same": True, "note": NOTE, "by": "ana"}]}
    _post(client, "/v1/labels", "label", json=label)
    service.wait_for_indexes()
    _post(client, f"{base}/search", "search", files={"file": draw_photo(1, 2)}, params={"aligned": True})
    pair = {"collection": collection, "subject": SUBJECT, "aligned": True}
    _post(client, "/v1/verify", "verify", files={"file": draw_photo(1, 2)}, params=pair)
    return Traces(_collect_patterns(service, [first, other]), [first, other])


def _post(client: httpx.Client, path: str, key: str, **request: object) -> httpx.Response:
    answer = client.post(path, headers={"Idempotency-Key": key}, **request)  # type: ignore[arg-type]
    assert answer.is_success, answer.text
    return answer


def _collect_patterns(service: Service, faces: list[str]) -> dict[str, bytes]:
    patterns = {text: text.encode() for text in (SUBJECT, NOTE, BADGE, FILE, EXTERNAL_ID, DESK)}
    with reading(service.resources.database) as session:
        rows = session.execute(
            select(Embedding.vector, Embedding.model_id, Face.face_id)
            .join(Face, Face.pk == Embedding.face_pk)
            .where(Face.face_id.in_(faces))
        ).all()
        images = session.scalars(select(Face.image_id).where(Face.face_id.in_(faces))).all()
    assert any(row.model_id == LBP_MODEL for row in rows)
    patterns |= {f"vector {row.face_id} {row.model_id}": row.vector[:200] for row in rows}
    patterns |= {f"image id {image}": image.encode() for image in images}
    patterns |= {f"photo {shot}": draw_photo(1, shot)[400:600] for shot in (1, 2)}
    return patterns


def find_traces(service: Service, traces: Traces) -> list[str]:
    """List the patterns that any file of the home or any row of a table holds: "pattern in store"."""
    stores = dict(_read_files(service.resources.settings.home)) | dict(_read_tables(service.resources.database))
    return sorted(
        f"{name} in {store}"
        for name, pattern in traces.patterns.items()
        for store, content in stores.items()
        if pattern in content
    )


def _read_files(home: Path) -> list[tuple[str, bytes]]:
    return [(str(path.relative_to(home)), path.read_bytes()) for path in home.rglob("*") if path.is_file()]


def _read_tables(database: Engine) -> list[tuple[str, bytes]]:
    tables = MetaData()
    tables.reflect(database)
    contents = []
    with database.connect() as connection:
        for table in tables.sorted_tables:
            rows = connection.execute(select(table)).all()
            contents.append((f"table {table.name}", b"\n".join(_to_bytes(value) for row in rows for value in row)))
    return contents


def _to_bytes(value: object) -> bytes:
    if isinstance(value, (bytes, memoryview)):
        return bytes(value)
    return (value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)).encode()
