"""The findings of an examination, with advice in words and what following it changes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.db.session import reading
from app.galleries.damaged_faces import list_damaged_faces
from app.resources import Resources
from ml.identification.changed_galleries import StrangerCheck, merge_people, split_person, without_faces
from ml.identification.hubs import Hub, HubSearch
from ml.identification.searches import GalleryPeople
from ml.people_discovery.suspects import NamedPeople
from ml.types import Ids

MAX_FINDINGS_PER_KIND = 50

DAMAGE_ADVICE = (
    "Trainings, evaluations and new models leave this face out, because its stored crop is damaged or missing. Restore "
    "the file from a backup, or enrol the same photo again."
)

Finding = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Examination:
    """What findings are made from.

    people: all faces; those of named people have the first owners
    named: the faces of named people, with people numbered alike; positions: (n,) of these faces among all
    check, hubs: searches for strangers, None where there are too few people
    subject_ids: the id of each named person; face_ids: the id of each face; poor: positions of faces of poor quality
    """

    people: GalleryPeople
    named: NamedPeople
    positions: Ids
    check: StrangerCheck | None
    hubs: HubSearch | None
    subject_ids: list[str]
    face_ids: list[str]
    poor: Ids

    def find_all(self) -> tuple[list[Finding], dict[str, int]]:
        """Return the first findings of each kind, and how many there are of each."""
        kinds = {
            "wrong_name": list(self._iterate_wrong_names()),
            "duplicate": list(self._iterate_duplicates()),
            "mixture": list(self._iterate_mixtures()),
            "named_for_strangers": list(self._iterate_hubs()),
            "poor_face": list(self._iterate_poor_faces()),
        }
        return (
            [finding for findings in kinds.values() for finding in findings[:MAX_FINDINGS_PER_KIND]],
            {kind: len(findings) for kind, findings in kinds.items()},
        )

    def _iterate_duplicates(self) -> Iterator[Finding]:
        for suspect in self.named.find_duplicates():
            first, second = sorted(suspect.people, key=lambda person: -len(self.people.faces_of(person)))
            kept, merged = self.subject_ids[first], self.subject_ids[second]
            after = self._measure(merge_people(self.people, first, second), [first, second])
            advice = f"If they are one person, merge {merged!r} into {kept!r}."
            yield _make("duplicate", [kept, merged], [], suspect.probability, after, advice)

    def _iterate_wrong_names(self) -> Iterator[Finding]:
        for suspect in self.named.find_wrong_faces():
            present, other = self.subject_ids[suspect.person], self.subject_ids[suspect.other]
            face = int(self.positions[suspect.position])
            changed = without_faces(self.people, np.array([face]))
            after = self._measure(changed, [suspect.person, suspect.other])
            advice = f"If the face shows {other!r}, give it that subject; otherwise delete it."
            yield _make("wrong_name", [present, other], [self.face_ids[face]], suspect.probability, after, advice)

    def _iterate_mixtures(self) -> Iterator[Finding]:
        for suspect in self.named.find_mixtures():
            smaller = [int(self.positions[position]) for group in suspect.groups[1:] for position in group]
            after = self._measure(split_person(self.people, np.array(smaller)), [suspect.person])
            advice = "If these faces show somebody else, give them another subject."
            faces = [self.face_ids[position] for position in smaller]
            yield _make("mixture", [self.subject_ids[suspect.person]], faces, None, after, advice)

    def _iterate_hubs(self) -> Iterator[Finding]:
        if self.hubs is None:
            return
        for hub in self.hubs.find():
            count = len(self.people.faces_of(hub.person))
            after = self._measure(without_faces(self.people, np.array(hub.faces)), [hub.person])
            faces = [self.face_ids[position] for position in hub.faces]
            outcome = "named so" if hub.decision == "match" else "possible matches"
            advice = (
                f"{hub.strangers} strangers were {outcome}, where {self.hubs.expect(hub.decision):.1g} are expected. "
            )
            advice += _advise_on_hub(hub, count)
            made = _make("named_for_strangers", [self.subject_ids[hub.person]], faces, None, after, advice)
            yield made | {"strangers": hub.strangers, "strangers_after": hub.strangers_left}

    def _iterate_poor_faces(self) -> Iterator[Finding]:
        for position in self.poor.tolist():
            person = int(self.people.owners[position])
            after = self._measure(without_faces(self.people, np.array([position])), [person])
            advice = "Replace it by a sharper or larger photo."
            yield _make("poor_face", [self.subject_ids[person]], [self.face_ids[position]], None, after, advice)

    def _measure(self, changed: GalleryPeople, owners: list[int]) -> float | None:
        return None if self.check is None else self.check.measure_change(changed, np.array(owners))


def list_damage(resources: Resources, collection: str) -> tuple[list[Finding], int]:
    """Return a finding for each of the first faces whose stored crops are damaged, and how many there are."""
    with reading(resources.database) as session:
        count, face_ids = list_damaged_faces(session, [collection])
    findings = [_make("damaged_face", [], [face_id], None, None, DAMAGE_ADVICE) for face_id in face_ids]
    return findings[:MAX_FINDINGS_PER_KIND], count


def _advise_on_hub(hub: Hub, face_count: int) -> str:
    if face_count == len(hub.faces):
        return "A better photo may help."
    faces = "this face" if len(hub.faces) == 1 else f"these {len(hub.faces)} faces"
    return f"Without {faces} {hub.strangers_left} would be. Give them another subject if they show somebody else."


def _make(
    kind: str, subjects: list[str], faces: list[str], probability: float | None, after: float | None, advice: str
) -> Finding:
    return {
        "kind": kind, "subjects": subjects, "faces": faces, "probability": probability,
        "strangers_named_after": after, "advice": advice,
    }  # fmt: skip
