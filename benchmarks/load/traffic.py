"""The requests of mixed traffic: searches by vector, photo and face, enrolments, labels, their removal, and lists."""

import io
import json
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from PIL import Image as Pillow

from benchmarks.load.connections import Address, Answer
from ml import synthetic_faces
from ml.types import Rows

SHARES = {"vector": 0.5, "photo": 0.2, "enrol": 0.05, "label": 0.1, "list": 0.15}
"""Share of the requests of each kind, unless it is given. There is also "face": a search by an enrolled face."""
STEADY_SHARES = SHARES | {"delete": SHARES["enrol"], "withdraw": SHARES["label"]}
"""What the traffic adds it removes again: each face is deleted, and each label taken back."""
KEPT_ADDITIONS = 64
"""As many faces and labels stay, once they are there. By chance, or because more removals were refused, there would be
hundreds after an hour."""
PHOTOS = 24
BOUNDARY = "load"
PART = (
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
).encode()
LIST_LIMIT = 20


def do_nothing() -> None:
    """Take no note of a refusal."""


class Request(NamedTuple):
    """The bytes of a request, what tells whether a 2xx answer to it is right, and what is called if it is refused."""

    kind: str
    data: bytes
    is_right: Callable[[Any], bool]
    note_refusal: Callable[[], None] = do_nothing


@dataclass
class Gallery:
    """The faces of the collection that is searched. rows: (n, dim); subjects and face_ids: n each"""

    collection: str
    rows: Rows
    subjects: list[str]
    face_ids: list[str]


@dataclass
class MixedTraffic:
    """Draws requests. seed: of their order and their content; shares: of the requests of each kind"""

    address: Address
    gallery: Gallery
    seed: int = 0
    photos: list[bytes] = field(default_factory=list)
    shares: Mapping[str, float] = field(default_factory=lambda: SHARES)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.photos = self.photos or [draw_photo(i) for i in range(PHOTOS)]
        self._draws = {
            "vector": self._draw_vector, "face": self._draw_face, "photo": self._draw_photo,
            "enrol": self._draw_enrolment, "label": self._draw_label, "list": self._draw_list,
            "delete": self._draw_deletion, "withdraw": self._draw_withdrawal,
        }  # fmt: skip
        self._enrolled, self._labellers = deque[str](), deque[str]()
        self._path = f"/v1/collections/{self.gallery.collection}"

    def draw(self) -> Request:
        """Draw a request of any kind."""
        [kind] = self._random.choices(list(self.shares), list(self.shares.values()))
        return self._draws[kind]()

    def _draw_vector(self) -> Request:
        number = self._random.randrange(len(self.gallery.rows))
        vector = (self.gallery.rows[number] + np.float32(1e-3)).tolist()
        subject = self.gallery.subjects[number]
        data = self._format("POST", "/search:by-embedding", {"vector": vector})
        return Request("vector", data, lambda answer: answer["faces"][0]["matches"][0]["subject"]["id"] == subject)

    def _draw_face(self) -> Request:
        number = self._random.randrange(len(self.gallery.face_ids))
        subject = self.gallery.subjects[number]
        data = self.address.format_request("POST", f"{self._path}/faces/{self.gallery.face_ids[number]}/search")
        return Request("face", data, lambda answer: answer["faces"][0]["matches"][0]["subject"]["id"] == subject)

    def _draw_photo(self) -> Request:
        return Request("photo", self._format_photo("/search"), lambda answer: len(answer["faces"]) == 1)

    def _draw_enrolment(self) -> Request:
        if "delete" in self.shares and len(self._enrolled) >= KEPT_ADDITIONS:
            return self._draw_deletion()
        return Request("enrol", self._format_photo("/faces"), self._note_enrolment)

    def _note_enrolment(self, answer: Any) -> bool:
        records = answer["face_records"]
        self._enrolled.extend(record["face_id"] for record in records)
        return len(records) == 1

    def _draw_deletion(self) -> Request:
        """Delete the face that was enrolled first; enrol one if there are few."""
        if len(self._enrolled) < KEPT_ADDITIONS:
            return self._draw_enrolment()
        face = self._enrolled.popleft()
        data = self.address.format_request("DELETE", f"{self._path}/faces/{face}")
        return Request("delete", data, lambda answer: answer is None, lambda: self._enrolled.appendleft(face))

    def _draw_label(self) -> Request:
        if "withdraw" in self.shares and len(self._labellers) >= KEPT_ADDITIONS:
            return self._draw_withdrawal()
        face_a, face_b = self._random.sample(self.gallery.face_ids, 2)
        labeller = f"labeller-{self._random.randrange(10**9)}"
        label = {"face_a": face_a, "face_b": face_b, "same": False, "by": labeller}
        body = json.dumps({"labels": [label]}).encode()
        data = self.address.format_request("POST", "/v1/labels", body)

        def note_label(answer: Any) -> bool:
            self._labellers.append(labeller)
            return bool(answer["accepted"] == 1)

        return Request("label", data, note_label)

    def _draw_withdrawal(self) -> Request:
        """Take back the label that was added first; add one if there are few."""
        if len(self._labellers) < KEPT_ADDITIONS:
            return self._draw_label()
        labeller = self._labellers.popleft()
        data = self.address.format_request("DELETE", f"/v1/labels?by={labeller}")
        put_back = self._labellers.appendleft
        return Request("withdraw", data, lambda answer: answer["withdrawn"] == 1, lambda: put_back(labeller))

    def _draw_list(self) -> Request:
        data = self.address.format_request("GET", f"{self._path}/faces?limit={LIST_LIMIT}")
        return Request("list", data, lambda answer: len(answer["faces"]) == LIST_LIMIT)

    def _format(self, method: str, path: str, body: dict[str, Any]) -> bytes:
        return self.address.format_request(method, self._path + path, json.dumps(body).encode())

    def _format_photo(self, path: str) -> bytes:
        """Bytes after the end of a JPEG make each photo another one, which is enrolled anew."""
        photo = self._random.choice(self.photos) + self._random.randbytes(16)
        body = PART + photo + f"\r\n--{BOUNDARY}--\r\n".encode()
        form = f"multipart/form-data; boundary={BOUNDARY}"
        return self.address.format_request("POST", self._path + path, body, form)


def draw_photo(seed: int) -> bytes:
    """Return the JPEG file of a drawn face."""
    buffer = io.BytesIO()
    Pillow.fromarray(synthetic_faces.draw(synthetic_faces.person(seed), 0)).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def is_right_answer(request: Request, answer: Answer) -> bool:
    """Whether an accepted request has the answer that it should have. An empty body is passed as None."""
    return request.is_right(json.loads(answer.body) if answer.body else None)
