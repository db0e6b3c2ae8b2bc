"""Every column that could hold a name: what erases it, or why it holds none. A new column needs a rule here."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import JSON, LargeBinary, MetaData, String, TypeDecorator, delete, select
from sqlalchemy.types import TypeEngine

from app.db.session import reading, writing
from app.db.tables import (
    Base,
    Collection,
    Deployment,
    Erasure,
    Evaluation,
    Job,
    JobItem,
    StoredResponse,
    Training,
)
from app.galleries.erased_names import ErasedNames
from app.galleries.protocol_files import ERASED_NAME, _scrub_live_files
from app.resources import Resources
from app.snapshots.erased_rows import erase_from_rows
from app.storage.model_cache import LBP_MODEL
from tests.databases import is_write_locked
from tests.workers.test_erase import context
from workers.erasing import completion
from workers.erasing.completion import complete_erasures

NAME, OTHER = "Plainname Ofsomebody", "Another Person"
NOW = 2_000.0

ROW = "the row is deleted with the face, the subject or the collection"
SCRUBBED = "scrubbed: the tests below write a name into it"
ID = "an id, a hash or a word of the service"
NUMBERS = "numbers and names of models, components and options"
OURS = "a text of the operator about something else than a person; docs/operate/erasure.md says so"
REPEATED = "options, and keys and labellers of the operator; it is carried out again, as docs/operate/erasure.md says"

RULES: dict[str, dict[str, str]] = {
    "answers": {
        "key_id": ID, "idempotency_key": "a keyed hash", "fingerprint": ID, "collection": ID, "process": ID,
        "headers": SCRUBBED, "body": SCRUBBED,
    },
    "atlases": {"collection_id": ID, "task": ID, "model_id": ID, "method": ID, "projection": NUMBERS,
                "measurements": NUMBERS},
    "audit_entries": {
        "id": ID, "action": ID, "key_id": ID, "address": "an address", "collection_id": ID,
        "resource": "an id, or the keyed hash of a name", "mac": ID,
    },
    "audit_heads": {"mac": ID, "cut_mac": ID, "signature": ID},
    "clustered_faces": {},
    "collections": {"id": ID, "description": OURS, "external_model": ID, "copied_from": ID},
    "damaged_faces": dict.fromkeys(("collection_id", "file", "reason"), ROW),
    "deployments": {
        **dict.fromkeys(
            ("collection_id", "task", "champion", "challenger", "previous", "label_policy", "label_weights"), ID
        ),
        "measurements": NUMBERS, "history": SCRUBBED,
    },
    "embeddings": {"model_id": ID, "task": ID, "vector": ROW},
    "erasures": {
        "id": ID, "collection_id": ID, "target": ID, "state": ID, "targets": SCRUBBED,
        "contents": "ids and keyed hashes", "fingerprints": "keyed hashes", "signature": ID,
    },
    "evaluations": {"id": ID, "request": SCRUBBED, "job_id": ID, "report": SCRUBBED},
    "face_clusters": {"collection_id": ID, "state": ID},
    "face_coordinates": {},
    "faces": dict.fromkeys(
        ("face_id", "collection_id", "role", "image_id", "external_image_id", "source", "bounding_box", "landmarks",
         "quality", "metadata"), ROW,
    ),
    "followers": dict.fromkeys(("process", "collection_id", "task", "model_id"), ID),
    "job_items": {"job_id": ID, "name": SCRUBBED, "state": ID, "detail": SCRUBBED},
    "jobs": {
        "id": ID, "kind": ID, "body": SCRUBBED, "queue": ID, "state": ID, "parent_id": ID, "lock": ID, "worker": ID,
        "collection_id": ID, "result": SCRUBBED, "problem": SCRUBBED,
    },
    "keys": {"id": ID, "name": OURS, "digest": ID, "role": ID, "collections": ID, "previous_digest": ID},
    "labels": {"task": ID, "by": ROW, "note": ROW},
    "models": {
        "id": ID, "manifest": "keyed hashes of who is left out, and numbers", "report": NUMBERS, "training_id": ID,
    },
    "people_searches": {"collection_id": ID, "model_id": ID},
    "removals": {"collection_id": ID},
    "server_tokens": {"token": ID},
    "shadow_totals": dict.fromkeys(("collection_id", "task", "champion", "challenger"), ID),
    "snapshots": dict.fromkeys(("id", "collection_id", "job_id"), ID),
    "source_compensations": {
        "collection_id": ID, "task": ID, "model_id": ID, "data": NUMBERS,
        "decisions": "names of sources, such as cameras", "faces": "names of sources, such as cameras",
    },
    "subjects": {
        **dict.fromkeys(("collection_id", "id", "external_id", "metadata"), ROW),
        "merged_subjects": "who was merged goes with the subject, and with one who is erased under its name",
    },
    "tasks": {"name": ID, "description": OURS},
    "training_policies": {
        **dict.fromkeys(("collection_id", "task", "trigger", "at", "publish", "last_training"), ID),
        "request": REPEATED, "problem": "why a training cannot start: it names options and collections",
    },
    "trainings": {
        "id": ID, "request": REPEATED, "job_id": ID, "snapshot": "numbers and keyed hashes", "curve": SCRUBBED,
        "report": SCRUBBED, "model": ID,
    },
}  # fmt: skip


def list_columns(metadata: MetaData) -> set[tuple[str, str]]:
    """List the columns whose values may hold a text, as (table, column)."""
    kinds = (String, JSON, LargeBinary)
    columns = [(table.name, column) for table in metadata.tables.values() for column in table.columns]
    return {(table, column.name) for table, column in columns if isinstance(get_stored_type(column.type), kinds)}


def get_stored_type(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """The type of a column without what converts its values."""
    return kind.impl_instance if isinstance(kind, TypeDecorator) else kind


def list_ruled(*rules: str) -> set[tuple[str, str]]:
    return {(table, name) for table, columns in RULES.items() for name, rule in columns.items() if rule in rules}


def test_every_column_that_could_hold_a_name_has_a_rule() -> None:
    ruled = {(table, name) for table, columns in RULES.items() for name in columns}
    assert list_columns(Base.metadata) - ruled == set(), "say what erases a name in it, or why it holds none"
    assert ruled - list_columns(Base.metadata) == set()
    assert RULES.keys() == Base.metadata.tables.keys()


@pytest.fixture
def resources(lasting_sqlite: Resources) -> Iterator[Resources]:
    yield lasting_sqlite
    with writing(lasting_sqlite.database) as session:
        for table in (Erasure, StoredResponse, JobItem, Evaluation, Training, Job, Deployment, Collection):
            session.execute(delete(table))


def write_traces(resources: Resources, name: str, job_state: str = "succeeded") -> None:
    """Write a name into everything that is scrubbed."""
    in_json = json.dumps({"inner": json.dumps({"text": f'so "{name}"'})})
    times: dict[str, Any] = {"created_at": 1.0, "started_at": None if job_state == "queued" else 1.0}
    missing = f"{name}/{name}_0009.jpg"
    problem = {"detail": f"no photo {missing}"}
    files = [
        {"name": "pairs.txt", "text": f"1\n{name}\t1\t2\no1\t1\to2\t1\n"},
        {"name": f"{name.replace(' ', '.')}.txt", "text": in_json},
    ]
    body = {"collection": "staff", "reason": f"{name} was missed", "path": f"/photos/{name}"}
    with writing(resources.database) as session:
        run = Job(kind="evaluate", body={"evaluation": f"of {name}"[:2]}, state=job_state, problem=problem, **times)
        done = Job(kind="publish", body=body, state="succeeded", result={"advice": f"like {name}."}, **times)
        session.add_all([run, done])
        session.flush()
        measured = (
            {"draws": [{"name": name.replace(" ", "."), "missing_queries": [missing]}]}
            if job_state == "succeeded"
            else {}
        )
        request = {"collection": "staff", "protocol": "disjoint", "files": files}
        session.add_all(
            [
                Evaluation(request=request, report=measured, job_id=run.id, created_at=1.0),
                JobItem(job_id=done.id, number=0, name=f"{name}/1.png", state="failed", detail={"reasons": [name]}),
                Training(request={"collection": "staff"}, report={"subject": name}, curve=[{"subjects": [name]}]),
                StoredResponse(
                    key_id="k", idempotency_key=name[:3], fingerprint="", status=200, collection="staff",
                    headers={"location": f"/v1/x/{name.replace(' ', '%20')}"}, body=b"{}", created_at=1.0,
                ),
                StoredResponse(
                    key_id="k", idempotency_key=f"nested {name[:3]}", fingerprint="", status=200, collection="staff",
                    body=in_json.encode(), created_at=1.0,
                ),
            ]
        )  # fmt: skip


def find(resources: Resources, name: str) -> set[tuple[str, str]]:
    """Find the columns that hold a name, however its words are parted."""
    found = set()
    with reading(resources.database) as session:
        for table in Base.metadata.tables.values():
            for row in session.execute(select(table)):
                for column, value in row._mapping.items():
                    text = value if isinstance(value, str) else json.dumps(value, default=bytes.decode)
                    if any(form in text for form in (name, name.replace(" ", "."), name.replace(" ", "%20"))):
                        found.add((table.name, str(column)))
    return found


def erase(resources: Resources, target: str) -> None:
    """Complete the erasure of NAME, or of all of the collection staff."""
    is_whole = target == "collection"
    targets = {
        "faces": [], "images": [], "files": [], "subject": None if is_whole else NAME, "subject_pk": 7,
        "names": [NAME], "texts": [NAME], "vectors": [], "removed_files": {"photos": 0, "crops": 0, "descriptors": 0},
        "fingerprints": {}, "unserved_at": NOW,
    }  # fmt: skip
    removed = {"faces": 1, "labels": 0, "embeddings": 0, "coordinates": 0}
    with writing(resources.database) as session:
        session.add(
            Erasure(
                id="e", collection_id="staff", collection_created_at=1.0, target=target, change=1, first_change=1,
                targets=targets, contents={"removed": removed}, requested_at=NOW,
            )
        )  # fmt: skip
    complete_erasures(context(resources))


@pytest.mark.parametrize("target", ["subject", "collection"])
def test_no_column_holds_a_name_after_its_erasure(resources: Resources, target: str) -> None:
    with writing(resources.database) as session:
        session.add(Collection(id="staff", change=0))
        session.flush()
        history = [{"reason": f"finds {NAME} better"}]
        session.add(Deployment(collection_id="staff", task="identity", champion=LBP_MODEL, history=history))
    write_traces(resources, NAME)
    expected = list_ruled(SCRUBBED) - {("erasures", "targets")}
    assert find(resources, NAME) == expected, "the test writes the name into each column that is scrubbed"
    if target == "collection":
        with writing(resources.database) as session:
            session.execute(delete(Collection))
    erase(resources, target)
    assert find(resources, NAME) - {("trainings", "report"), ("trainings", "curve")} == set()
    if target == "subject":
        assert find(resources, NAME) == set()


def test_others_keep_their_names_but_no_ended_evaluation_keeps_its_files(resources: Resources) -> None:
    write_traces(resources, OTHER)
    before = find(resources, OTHER)
    erase(resources, "subject")
    assert before - find(resources, OTHER) == set(), "its file is named after it"
    with reading(resources.database) as session:
        files = session.scalars(select(Evaluation)).one().request["files"]
    assert [file["text"] for file in files] == ["(erased)"] * 2
    assert files[0]["name"] == "pairs.txt"


def test_others_can_write_while_the_models_of_a_receipt_are_listed(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshots of all trainings are read for each erasure."""
    locks = []

    def list_models(*_: object) -> list[str]:
        locks.append(is_write_locked(resources))
        return ["learned"]

    monkeypatch.setattr(completion, "list_models_that_read", list_models)
    erase(resources, "subject")
    assert locks == [False]
    with reading(resources.database) as session:
        erasure = session.get_one(Erasure, "e")
        assert (erasure.state, erasure.contents["models"]) == ("final", ["learned"])


@pytest.mark.parametrize(("name", "kept"), [(NAME, False), (OTHER, True)])
def test_an_evaluation_that_waits_loses_only_files_that_name_the_person(
    resources: Resources, name: str, kept: bool
) -> None:
    write_traces(resources, name, job_state="queued")
    with reading(resources.database) as session:
        before = session.scalars(select(Evaluation)).one().request
    erase(resources, "subject")
    with reading(resources.database) as session:
        after = session.scalars(select(Evaluation)).one().request
        assert (after == before) == kept
        assert session.get_one(Erasure, "e").state == "final"
    assert kept or [file["text"] for file in after["files"]] == ["(erased)"] * 2


def test_an_evaluation_that_waits_loses_a_file_that_only_its_name_gives_away() -> None:
    one = ErasedNames("e", "staff", False, NOW, frozenset(), NAME, frozenset({NAME}))
    files = [{"name": f"{name}.txt", "text": "1 2 3"} for name in (NAME, OTHER)]
    evaluation = Evaluation(request={"collection": "staff", "files": files})
    assert _scrub_live_files(None, evaluation, one)
    assert evaluation.request["files"] == [{"name": ERASED_NAME, "text": "(erased)"}, files[1]]


def test_an_erasure_waits_for_an_evaluation_that_has_begun_with_the_name(resources: Resources) -> None:
    write_traces(resources, NAME, job_state="running")
    with writing(resources.database) as session:
        for job in session.scalars(select(Job).where(Job.kind == "evaluate")):
            job.started_at = NOW + 1
            evaluation = session.scalars(select(Evaluation)).one()
            job.body = {"evaluation": evaluation.id}
    erase(resources, "subject")
    with reading(resources.database) as session:
        assert session.get_one(Erasure, "e").state == "pending"
    with writing(resources.database) as session:
        for job in session.scalars(select(Job)):
            job.state = "failed"
    complete_erasures(context(resources))
    assert find(resources, NAME) == set()


def test_a_snapshot_loses_the_files_of_an_evaluation_that_ran_when_it_was_taken(resources: Resources) -> None:
    erased = ErasedNames("e", "staff", False, NOW, frozenset(), NAME, frozenset({NAME}))
    for name, is_kept in ((OTHER, True), (NAME, False)):
        write_traces(resources, name, job_state="running")
        erase_from_rows(resources.database, [erased], lambda: None)
        assert (("evaluations", "request") in find(resources, name)) == is_kept
