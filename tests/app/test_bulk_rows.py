"""Rows that are inserted in bulk are stored as they are, whatever their values have in common."""

import re
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from app.db.session import reading, writing
from app.db.tables import Embedding, Face, Subject
from app.enrolment.bulk_rows import insert_columns, insert_embeddings, make_face_ids
from app.storage.embedding_codec import decode_embeddings
from tests.rows import GalleryWriter, make_model

MODEL = make_model("m-bulk")
UUID_7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
SAME: dict[str, Any] = {
    "collection_id": "staff", "role": "gallery", "number": 0, "bounding_box": "{}", "landmarks": "[]", "quality": "{}",
    "metadata": "{}", "change": 1, "created_at": 1.5,
}  # fmt: skip


def insert_faces(resources: Any, columns: dict[str, Any]) -> list[Face]:
    """Insert three faces, and return those of the collection in the order of their pks."""
    GalleryWriter(resources).make(MODEL)
    with writing(resources.database) as session:
        insert_columns(session, Face, 3, SAME | {"face_id": make_face_ids(3), "image_id": ["a", "b", "c"]} | columns)
    with reading(resources.database) as session:
        return list(session.scalars(select(Face).order_by(Face.pk)))


@pytest.mark.parametrize(
    "values",
    [
        ["x", "x", "x"],
        ["long", "of1l", "engt"],
        ["of", "several", "lengths"],
        ["ä", "ß", "é"],
        ["of one length with an ", "𝔘nicode character or ", "'quotes', \"\\ and \ttab"],
        ["", "", "1"],
        [None, "1", None],
        [None, None, None],
        ["1", "2", "3"],
        ["01", "1e", "0x"],
        ["null", "true", "[[]]"],
        ["?1", "$[0]", "key"],
    ],
)
def test_texts_are_stored_as_they_are(resources: Any, values: list[str | None]) -> None:
    faces = insert_faces(resources, {"external_image_id": values})
    assert [face.external_image_id for face in faces] == values


def test_values_of_every_type_are_stored_in_order(resources: Any) -> None:
    faces = insert_faces(
        resources,
        {
            "number": [0, 7, 2**31 - 1],
            "change": [1, 2, 2**53 + 1],
            "created_at": [0.1, 1795964240.8612366, 1e-7],
            "metadata": ['{"a": "\\u0000"}', "{}", '{"b": [1, null, "ü"]}'],
        },
    )
    assert [face.number for face in faces] == [0, 7, 2**31 - 1]
    assert [face.change for face in faces] == [1, 2, 2**53 + 1]
    assert [face.created_at for face in faces] == [0.1, 1795964240.8612366, 1e-7]
    assert [face.attributes for face in faces] == [{"a": "\0"}, {}, {"b": [1, None, "ü"]}]


def test_the_first_of_two_rows_with_one_key_stays(resources: Any) -> None:
    faces = insert_faces(resources, {"image_id": ["a", "b", "a"], "external_image_id": ["1", "2", "3"]})
    assert [face.external_image_id for face in faces] == ["1", "2"]
    with writing(resources.database) as session:
        insert_columns(session, Face, 2, SAME | {"face_id": make_face_ids(2), "image_id": ["b", "d"], "change": 2})
    with reading(resources.database) as session:
        assert list(session.scalars(select(Face.image_id).order_by(Face.pk))) == ["a", "b", "d"]


def test_a_row_that_nothing_may_refer_to_takes_the_others_with_it(resources: Any) -> None:
    GalleryWriter(resources).make(MODEL)
    with writing(resources.database) as session:
        session.add(Subject(collection_id="staff", id="ada"))
        session.flush()
        pk = session.scalars(select(Subject.pk)).one()
    columns = SAME | {"face_id": make_face_ids(2), "image_id": ["a", "b"], "subject_pk": [pk, pk + 1]}
    with pytest.raises(Exception, match=r"(?i)foreign key"), writing(resources.database) as session:
        insert_columns(session, Face, 2, columns)
    with reading(resources.database) as session:
        assert session.scalar(select(Face.pk)) is None


@pytest.mark.parametrize("count", [0, 1, 3])
def test_embeddings_belong_to_their_faces(resources: Any, count: int) -> None:
    faces = insert_faces(resources, {})
    rows = np.random.default_rng(0).normal(size=(count, 5)).astype(np.float32)
    pks = [face.pk for face in faces][::-1][:count]
    with writing(resources.database) as session:
        insert_embeddings(session, MODEL.id, "identity", pks, rows)
        insert_embeddings(session, MODEL.id, "identity", pks[:1], rows[:1] + 1)  # is there already
    with reading(resources.database) as session:
        stored = {row.face_pk: row.vector for row in session.scalars(select(Embedding))}
    assert stored.keys() == set(pks)
    for pk, row in zip(pks, rows, strict=True):
        assert (decode_embeddings([stored[pk]], 5) == row).all()


def test_face_ids_are_uuids_in_order() -> None:
    ids = make_face_ids(2**18)
    assert ids == sorted(set(ids))
    assert all(map(UUID_7.fullmatch, ids))
    assert make_face_ids(0) == []
