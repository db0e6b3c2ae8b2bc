"""`likeness erase`: receipts are checked, and every store is searched."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select, update
from typer.testing import CliRunner, Result

from app.cli.main import app
from app.db.session import reading, writing
from app.db.tables import Embedding, Erasure, Face, Subject
from app.galleries.erasure_receipts import build_receipt
from app.resources import Resources
from tests.workers.test_erase import collection
from tests.workers.test_erasing import add, erase_subject, read_state, work_until
from tests.workers.test_import import picture

NAME, OTHER_NAME = "ludovica-erasmus-41", "bystander-with-a-long-id"


@pytest.fixture
def staff(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> Resources:
    """A collection of four faces of two subjects with long names, one of which has metadata. No process serves it."""
    monkeypatch.setattr("app.serving.reporter.MAX_REPORT_SECONDS", 0.0)
    with writing(resources.database) as session:
        collection(session, "staff")
    for n in range(4):
        add(resources, n)
    with writing(resources.database) as session:
        for old, new in (("s0", NAME), ("s1", OTHER_NAME)):
            session.execute(update(Subject).where(Subject.id == old).values(id=new, attributes={"desk": f"of {new}"}))
    return resources


def run(resources: Resources, *words: str) -> Result:
    settings = resources.settings
    env = {"LIKENESS_HOME": str(settings.home), "LIKENESS_DATABASE_URL": settings.database_url}
    return CliRunner().invoke(app, ["erase", *words], env=env)


def erase(resources: Resources) -> Erasure:
    erasure = erase_subject(resources, NAME)
    work_until(resources, lambda: read_state(resources, erasure) == "final")
    with reading(resources.database) as session:
        return session.get_one(Erasure, erasure)


def read_vector(resources: Resources) -> bytes:
    with reading(resources.database) as session:
        vectors = select(Embedding.vector).join(Face, Face.pk == Embedding.face_pk).join(Subject)
        return bytes(session.scalars(vectors.where(Subject.id == NAME)).first() or b"")


def test_nothing_is_found_after_an_erasure(staff: Resources, tmp_path: Path) -> None:
    photo = tmp_path / "hers.png"
    photo.write_bytes(picture(0))
    before = run(staff, "verify", NAME, "--photo", str(photo))
    assert before.exit_code == 1, "she is stored"
    assert "FOUND text in blobs/" in before.output
    receipt = erase(staff)
    for words in ((receipt.id,), (NAME,), ("--photo", str(photo)), ("--text", f"of {NAME}")):
        result = run(staff, "verify", *words)
        assert result.exit_code == 0, result.output
        assert "nothing was found" in result.output
    assert "signed by this installation" in run(staff, "verify", NAME).output


def test_what_is_left_of_a_person_is_found_by_the_receipt_alone(staff: Resources) -> None:
    vector, photo = read_vector(staff), picture(0)
    receipt = erase(staff)
    assert {fingerprint["kind"] for fingerprint in receipt.fingerprints} == {"text", "vector", "photo", "crop"}
    left = {"a/log.txt": f"... {NAME} ...".encode(), "b.npy": bytes(77) + vector, "c.tar": bytes(512) + photo}
    for name, data in left.items():
        path = staff.settings.home / "uploads" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        result = run(staff, "verify", receipt.id)
        assert result.exit_code == 1, name
        assert f"in uploads/{name}: 1" in result.output
        path.unlink()
    assert run(staff, "verify", receipt.id).exit_code == 0


def test_bytes_in_a_table_are_found(staff: Resources) -> None:
    vector = read_vector(staff)
    receipt = erase(staff)
    with writing(staff.database) as session:
        embedding = session.scalars(select(Embedding)).first()
        assert embedding is not None
        embedding.vector = vector
    result = run(staff, "verify", receipt.id)
    assert result.exit_code == 1
    assert "FOUND vector in table embeddings: 1" in result.output


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_bytes_in_free_pages_are_found_and_go_when_the_database_is_written_anew(staff: Resources) -> None:
    path = staff.settings.home / "likeness.sqlite"
    receipt = erase(staff)
    with closing(sqlite3.connect(path)) as earlier:  # as a version without secure_delete did
        earlier.execute("pragma secure_delete = off")
        earlier.execute("create table scrap (data text)")
        earlier.execute("insert into scrap values (?)", (NAME,))
        earlier.execute("delete from scrap")
        earlier.commit()
    result = run(staff, "verify", receipt.id)
    assert result.exit_code == 1
    assert "FOUND text in likeness.sqlite" in result.output
    staff.database.dispose()
    assert run(staff, "compact").exit_code == 0
    assert run(staff, "verify", receipt.id).exit_code == 0


def test_a_text_that_somebody_else_has_too_is_left_out(staff: Resources) -> None:
    receipt = erase(staff)
    with writing(staff.database) as session:
        session.execute(update(Subject).values(external_id=NAME))
    result = run(staff, "verify", receipt.id)
    assert result.exit_code == 0, result.output
    assert "1 texts belong to somebody who is stored now" in result.output


def test_a_text_that_a_record_of_a_merge_alone_has_is_found(staff: Resources) -> None:
    """It hid what other stores had of it, too, as if it belonged to somebody who is stored now."""
    receipt = erase(staff)
    merged = {"id": NAME, "external_id": None, "created_at": 1.0, "merged_at": 2.0}
    with writing(staff.database) as session:
        session.execute(update(Subject).values(merged_subjects=[merged]))
    result = run(staff, "verify", receipt.id)
    assert result.exit_code == 1
    assert "FOUND text in table subjects" in result.output


def test_what_a_receipt_leaves_to_others_and_does_not_recognise_is_said(
    staff: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"bounding_box": {}, "landmarks": [], "quality": {}, "change": 0}
    with writing(staff.database) as session:
        shared = session.scalars(select(Face).join(Subject).where(Subject.id == NAME)).first()
        other = session.scalars(select(Subject.pk).where(Subject.id == OTHER_NAME)).one()
        assert shared is not None
        session.add(Face(collection_id="staff", image_id=shared.image_id, number=1, subject_pk=other, **values))
    receipt = erase(staff)
    assert receipt.contents["removed"]["photos"] == 1
    assert receipt.contents["removed"]["photos_kept"] == 1
    result = run(staff, "verify", receipt.id)
    assert result.exit_code == 0, result.output
    assert "1 photos were kept" in result.output
    assert "can be recognised" not in result.output
    monkeypatch.setattr("app.cli.administration.erase.MAX_FINGERPRINTED_FACES", 1)
    assert "only the first 1 can be recognised" in run(staff, "verify", receipt.id).output


def test_an_altered_receipt_is_refused(staff: Resources, tmp_path: Path) -> None:
    receipt = erase(staff)
    stated = build_receipt(receipt) | {"signature": receipt.signature}
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(stated))
    assert run(staff, "verify", str(path)).exit_code == 0
    path.write_text(json.dumps(stated | {"models": ["another"]}))
    refused = run(staff, "verify", str(path))
    assert refused.exit_code == 1
    assert "NOT as this installation has signed it" in refused.output
    with writing(staff.database) as session:
        session.get_one(Erasure, receipt.id).fingerprints = []
    assert run(staff, "verify", receipt.id).exit_code == 1, "the fingerprints are signed too"


def test_an_erasure_that_is_not_complete_does_not_pass(staff: Resources) -> None:
    erasure = erase_subject(staff, NAME)
    result = run(staff, "verify", erasure)
    assert result.exit_code == 1
    assert "is pending: not everything is erased yet" in result.output


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_cannot_be_searched_for_is_said(staff: Resources, tmp_path: Path) -> None:
    unknown = " ".join(run(staff, "verify", "0" * 24).output.replace("│", "").split())
    assert "no erasure" in unknown
    assert "put back to a time before" in unknown
    assert "name a receipt" in run(staff, "verify").output
    assert "would be found by chance" in run(staff, "verify", "--text", "ada").output
    assert "only this text is searched for" in run(staff, "verify", "nobody-of-this-name").output
    empty = CliRunner().invoke(app, ["erase", "verify", "x"], env={"LIKENESS_HOME": str(tmp_path / "none")})
    assert empty.exit_code == 2
