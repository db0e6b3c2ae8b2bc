"""The kinds of writes that clients send at once, and what each of them changes in the record of its client."""

import base64
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
import numpy as np

from ml import images
from ml.synthetic_faces import draw, person
from tests.chaos.client_record import ClientRecord, WrittenKey, WrittenLabel
from tests.chaos.gallery_work import pack_photos
from tests.chaos.workload import COLLECTION
from tests.npy import to_npy

VECTOR_COLLECTION = "chaos-vectors"
VECTOR_DIM = 8
BASE, VECTOR_BASE = f"/v1/collections/{COLLECTION}", f"/v1/collections/{VECTOR_COLLECTION}"
DEPLOYMENT = f"{BASE}/deployments/identity"
FIRST_DRAWN_PERSON = 200_000
MAX_DRAWN_PEOPLE = 10_000
LATEST_MOMENT, EARLIEST_MOMENT = 4_000_000_000, 3_000_000_000
KEYED_SHARE = 0.5

NoteWrite = Callable[[ClientRecord, httpx.Response | None], None]


@dataclass(frozen=True)
class Write:
    """A request that changes something.

    action: as the audit log calls it; request: parameters, body and headers
    note: changes the record of the client as the request does; its answer is None if it was lost
    """

    action: str
    method: str
    path: str
    note: NoteWrite
    request: dict[str, Any] = field(default_factory=dict)

    @property
    def is_keyed(self) -> bool:
        return "Idempotency-Key" in self.request.get("headers", {})


@dataclass
class WriteDrawer:
    """Draws the writes of one client, which owns whatever it names.

    prefix: of all names, different for each client and trial; models: those that can be published
    """

    record: ClientRecord
    rng: random.Random
    number: int
    prefix: str = ""
    models: tuple[str, ...] = ()
    _count: int = 0

    def draw(self) -> Write:
        """Draw a write of any kind. Where there is nothing yet to change or delete, a photo is enrolled."""
        kinds = GALLERY_KINDS | (MODEL_KINDS if self.models else {})
        [kind] = self.rng.choices(list(kinds), list(kinds.values()))
        write = kind(self) or draw_enrolment(self)
        if write.method == "POST" and self.rng.random() < KEYED_SHARE:
            write.request["headers"] = {"Idempotency-Key": self.name("once")}
        return write

    def name(self, kind: str) -> str:
        """Return a new name. None is a part of another."""
        self._count += 1
        return f"{self.prefix}{kind}{self._count:04}"

    def draw_photo(self) -> bytes:
        """Draw a photo that no client has drawn before."""
        self._count += 1
        drawn = person(FIRST_DRAWN_PERSON + MAX_DRAWN_PEOPLE * self.number + self._count)
        return images.encode_png(draw(drawn, self.rng.randrange(1_000_000)))

    def choose(self, names: list[str]) -> str | None:
        return self.rng.choice(names) if names else None


def draw_enrolment(drawer: WriteDrawer) -> Write:
    """Enrol a photo, of a new person, of one who is enrolled, or of nobody."""
    photo, subject = drawer.name("photo"), drawer.rng.choice([drawer.name("who"), None])
    if drawer.rng.random() < 0.5:
        subject = drawer.choose(drawer.record.list_people()) or subject
    body = {"image": base64.b64encode(drawer.draw_photo()).decode(), "aligned": True, "external_image_id": photo}

    def note(record: ClientRecord, answer: httpx.Response | None) -> None:
        record.add_face(photo, answer.json()["face_records"][0]["face_id"] if answer else "", subject)

    return Write("face.enrol", "POST", f"{BASE}/faces", note, {"json": body | {"subject": subject}})


def draw_face_deletion(drawer: WriteDrawer) -> Write | None:
    photo = drawer.choose(drawer.record.list_usable())
    if photo is None:
        return None
    return _delete("face", drawer.record.faces[photo].face_id, lambda record: record.erase_face(photo))


def draw_subject_deletion(drawer: WriteDrawer) -> Write | None:
    subject = drawer.choose(drawer.record.list_people())
    return _delete("subject", subject, lambda record: record.erase_subject(subject)) if subject else None


def _delete(kind: str, name: str, note: Callable[[ClientRecord], None]) -> Write:
    return Write(f"{kind}.delete", "DELETE", f"{BASE}/{kind}s/{name}", lambda record, _: note(record))


def draw_labels(drawer: WriteDrawer) -> Write | None:
    """Label up to three pairs of the client's faces. A labeller has a few of these requests."""
    faces = drawer.record.list_usable()
    if len(faces) < 2:
        return None
    pairs = [tuple(sorted(drawer.rng.sample(faces, 2))) for _ in range(drawer.rng.randint(1, 3))]
    by = f"{drawer.prefix}by{drawer.rng.randrange(3)}"
    labels = [WrittenLabel((a, b), drawer.rng.random() < 0.5, by) for a, b in pairs]
    ids = drawer.record.faces
    sent = [
        {"face_a": ids[a].face_id, "face_b": ids[b].face_id, "same": same, "by": by} for (a, b), same, by, _ in labels
    ]
    return Write(
        "label.add", "POST", "/v1/labels", lambda record, _: record.labels.extend(labels), {"json": {"labels": sent}}
    )


def draw_withdrawal(drawer: WriteDrawer) -> Write | None:
    by = drawer.choose([label.by for label in drawer.record.labels if not label.is_withdrawn])
    if by is None:
        return None
    return Write(
        "label.withdraw", "DELETE", "/v1/labels", lambda record, _: record.withdraw(by), {"params": {"by": by}}
    )


def draw_subject_change(drawer: WriteDrawer) -> Write | None:
    """Change some of a subject's external id, consent and end of retention."""
    subject = drawer.choose(drawer.record.list_people())
    if subject is None:
        return None
    moment = float(drawer.rng.randint(EARLIEST_MOMENT, LATEST_MOMENT))
    values: dict[str, Any] = {
        "external_id": drawer.name("called"),
        "consent": drawer.rng.choice([True, True, None, False]),
        "retain_until": moment,
    }
    chosen = drawer.rng.sample(sorted(values), drawer.rng.randint(1, 3))
    body = {name: values[name] for name in chosen}
    if "retain_until" in body:
        body["retain_until"] = datetime.fromtimestamp(moment, UTC).isoformat()

    def note(record: ClientRecord, _: httpx.Response | None) -> None:
        for name in chosen:
            setattr(record.subjects[subject], name, values[name])

    return Write("subject.change", "PATCH", f"{BASE}/subjects/{subject}", note, {"json": body})


def draw_merge(drawer: WriteDrawer) -> Write | None:
    people = drawer.record.list_people()
    if len(people) < 2:
        return None
    subject, into = drawer.rng.sample(people, 2)
    path, body = f"{BASE}/subjects/{subject}:merge", {"json": {"into": into}}
    return Write("subject.merge", "POST", path, lambda record, _: record.merge(subject, into), body)


def draw_photo_import(drawer: WriteDrawer) -> Write:
    """Import an archive of one new person."""
    subject = drawer.name("who")
    photos = {f"{subject}/{drawer.name('photo')}.png": drawer.draw_photo() for _ in range(drawer.rng.randint(1, 4))}
    request = {"params": {"aligned": "true"}, "content": pack_photos(photos)}
    return Write(
        "face.import", "POST", f"{BASE}:import", lambda record, _: record.import_faces(photos, subject), request
    )


def draw_vector_import(drawer: WriteDrawer) -> Write:
    """Import some vectors of new people."""
    names = [drawer.name("vector") for _ in range(drawer.rng.randint(1, 20))]
    vectors = np.random.default_rng(drawer.rng.randrange(2**32)).standard_normal((len(names), VECTOR_DIM))
    people = {name: f"{drawer.prefix}of{name}" for name in names}
    table = "\n".join(["subject,external_image_id", *(f"{subject},{name}" for name, subject in people.items())])
    files = {"vectors": to_npy(vectors.astype(np.float32)), "table": table.encode()}
    path = f"{VECTOR_BASE}/faces:import-embeddings"
    return Write("face.import", "POST", path, lambda record, _: record.import_vectors(people), {"files": files})


def draw_key(drawer: WriteDrawer) -> Write:
    name = drawer.name("key")

    def note(record: ClientRecord, answer: httpx.Response | None) -> None:
        made = answer.json() if answer else {"id": "", "key": ""}
        record.keys[name] = WrittenKey(made["id"], made["key"])

    return Write("key.create", "POST", "/v1/keys", note, {"json": {"role": "reader", "name": name}})


def draw_revocation(drawer: WriteDrawer) -> Write | None:
    name = drawer.choose([name for name, key in drawer.record.keys.items() if key.id and not key.is_revoked])
    if name is None:
        return None

    def note(record: ClientRecord, _: httpx.Response | None) -> None:
        record.keys[name].is_revoked = True

    return Write("key.revoke", "DELETE", f"/v1/keys/{drawer.record.keys[name].id}", note)


def draw_training(drawer: WriteDrawer) -> Write:
    body = {"collection": COLLECTION, "method": "wpca", "descriptor": "lbp", "dim": 8}

    def note(record: ClientRecord, _: httpx.Response | None) -> None:
        record.trainings += 1

    return Write("training.start", "POST", "/v1/trainings", note, {"json": body})


def draw_publication(drawer: WriteDrawer) -> Write | None:
    """Publish a model that does not serve."""
    model, reason = drawer.choose([m for m in drawer.models if m != drawer.record.champion]), drawer.name("move")
    if model is None:
        return None
    body = {"json": {"model": model, "override": True, "reason": reason}}
    return Write(
        "model.publish", "POST", f"{DEPLOYMENT}:publish", lambda record, _: record.publish(model, reason), body
    )


def draw_roll_back(drawer: WriteDrawer) -> Write | None:
    if drawer.record.previous is None:
        return None
    previous, reason = drawer.record.previous, drawer.name("move")
    path, body = f"{DEPLOYMENT}:rollback", {"json": {"reason": reason}}
    return Write("model.roll-back", "POST", path, lambda record, _: record.publish(previous, reason), body)


GALLERY_KINDS: dict[Callable[[WriteDrawer], Write | None], int] = {
    draw_enrolment: 5,
    draw_face_deletion: 2,
    draw_subject_deletion: 1,
    draw_labels: 4,
    draw_withdrawal: 1,
    draw_subject_change: 3,
    draw_merge: 1,
    draw_photo_import: 1,
    draw_vector_import: 1,
    draw_key: 1,
    draw_revocation: 1,
}
MODEL_KINDS: dict[Callable[[WriteDrawer], Write | None], int] = {
    draw_training: 2,
    draw_publication: 6,
    draw_roll_back: 4,
}
