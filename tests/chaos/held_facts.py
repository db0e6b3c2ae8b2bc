"""What the service holds of each client's writes, read through its API."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.chaos.client_record import Fact
from tests.chaos.client_writes import BASE, DEPLOYMENT, VECTOR_BASE
from tests.service_subprocess import ServiceSubprocess

OWNER = re.compile(r"(t\d{3})c(\d)")
"""What the name of whatever a client has written begins with: the trial and the client's number."""
PAGE = 1000
FIRST_CLIENT = 0
"""The only client that trains models and moves pointers."""


@dataclass
class HeldFacts:
    """What the service holds.

    of_client: number of the client -> its facts, each as often as it is held; face_ids: photo -> id of its face
    key_ids: name -> id
    """

    of_client: dict[int, Counter[Fact]] = field(default_factory=lambda: defaultdict(Counter))
    face_ids: dict[str, str] = field(default_factory=dict)
    key_ids: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, *fact: object) -> None:
        """Add a fact to those of the client that the name is of. What others have written is left out."""
        owner = OWNER.match(name)
        if owner:
            self.of_client[int(owner[2])][fact] += 1


def iterate_rows(service: ServiceSubprocess, path: str, name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of all pages of a list. name: of the field that has them"""
    token = None
    while True:
        params = {"limit": PAGE} | ({"next_token": token} if token else {})
        page = service.client.get(path, params=params).raise_for_status().json()
        yield from page[name]
        token = page["next_token"]
        if token is None:
            return


def read_facts(service: ServiceSubprocess, trial: int) -> HeldFacts:
    """Read what the service holds. trial: of whose moves of pointers"""
    held = HeldFacts()
    photos = {}
    for face in iterate_rows(service, f"{BASE}/faces", "faces"):
        photo, subject = face["external_image_id"] or "", face["subject"]
        photos[face["face_id"]], held.face_ids[photo] = photo, face["face_id"]
        held.add(photo, "face", photo, subject and subject["id"])
    for subject in iterate_rows(service, f"{BASE}/subjects", "subjects"):
        until = subject["retain_until"] and datetime.fromisoformat(subject["retain_until"]).timestamp()
        held.add(subject["id"], "subject", subject["id"], subject["external_id"], subject["consent"], until)
    for label in iterate_rows(service, "/v1/labels", "labels"):
        pair = tuple(sorted((photos[label["face_a"]], photos[label["face_b"]])))
        held.add(label["by"], "label", pair, label["same"], label["by"], label["withdrawn_at"] is not None)
    for face in iterate_rows(service, f"{VECTOR_BASE}/faces", "faces"):
        held.add(face["external_image_id"], "vector", face["external_image_id"], face["subject"]["id"])
    for key in iterate_rows(service, "/v1/keys", "keys"):
        held.key_ids[key["name"]] = key["id"]
        held.add(key["name"], "key", key["name"], key["revoked_at"] is not None)
    _add_models(held, service, trial)
    return held


def _add_models(held: HeldFacts, service: ServiceSubprocess, trial: int) -> None:
    facts = held.of_client[FIRST_CLIENT]
    facts["training",] = sum(1 for _ in iterate_rows(service, "/v1/trainings", "trainings"))
    deployment = service.client.get(DEPLOYMENT).raise_for_status().json()
    facts["champion", deployment["champion"]] = 1
    for move in deployment["history"]:
        if move["reason"].startswith(f"t{trial:03}"):
            held.add(move["reason"], "move", move["reason"])
    held.of_client[FIRST_CLIENT] = +facts
