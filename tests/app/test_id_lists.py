"""A long list of ids is one parameter, so that a connection keeps few statements however long its lists are."""

from typing import Any

import pytest
from sqlalchemy import event, select

from app.db.id_lists import select_ids, select_ids_parameter
from app.db.session import reading, writing
from app.db.tables import Face, Label
from app.resources import Resources
from app.search.enrolled_faces import query_faces
from app.serving.labels.reader import read_constraints
from tests.gallery import enrol

NAME = "c"


@pytest.fixture
def faces(resources: Resources) -> list[tuple[int, str]]:
    """(pk, id) of twelve faces in the collection."""
    enrol(resources, NAME, range(6), shots=2)
    with reading(resources.database) as session:
        return [(pk, face_id) for pk, face_id in session.execute(select(Face.pk, Face.face_id).order_by(Face.pk))]


@pytest.mark.parametrize("count", [0, 1, 5, 12])
def test_rows_are_chosen_by_a_list_of_numbers_or_texts(
    resources: Resources, faces: list[tuple[int, str]], count: int
) -> None:
    pks, ids = [pk for pk, _ in faces[:count]], [face_id for _, face_id in faces[:count]]
    with reading(resources.database) as session:
        by_pk = select(Face.pk).where(Face.pk.in_(select_ids(session, [*pks, -1]))).order_by(Face.pk)
        assert session.scalars(by_pk).all() == pks
        assert session.scalars(select(Face.pk).where(Face.pk.in_(select_ids(session, [])))).all() == []
        by_id = (
            select(Face.pk).where(Face.face_id.in_(select_ids(session, [*ids, 'no "face" \u00eb']))).order_by(Face.pk)
        )
        assert session.scalars(by_id).all() == pks
        parameter = select_ids_parameter(session.get_bind().dialect.name, "wanted")
        assert len(session.execute(select(Face.pk).where(Face.pk.in_(parameter)), {"wanted": pks}).all()) == count


def test_statements_are_the_same_however_many_labels_and_faces_there_are(
    resources: Resources, faces: list[tuple[int, str]]
) -> None:
    seen: list[set[str]] = [set()]
    event.listen(resources.database, "before_cursor_execute", lambda *values: seen[-1].add(values[2]))

    for count in range(1, 5):
        seen.append(set())
        with writing(resources.database) as session:
            values: dict[str, Any] = {"task": "identity", "same": False, "by": "eve", "note": ""}
            session.add(Label(face_a=faces[0][0], face_b=faces[2 * count][0], **values))
        with reading(resources.database) as session:
            seen.append(set())
            assert len(read_constraints(session, NAME, "identity", 0).settled.labels) == count
            query_faces(session, [pk for pk, _ in faces[: count + 1]])
    assert len(seen[-1]) > 2
    assert all(statements == seen[-1] for statements in seen[2::2])
