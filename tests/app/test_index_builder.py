"""What is read to build an index."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Select

from app.db.session import snapshot
from app.labels import question_faces
from app.publishing.pointers import select_faces_without_embedding
from app.resources import Resources
from app.serving import index_builder
from app.serving.compensation.store import NO_COMPENSATION
from app.serving.index_builder import IndexKey
from tests.databases import execute
from tests.rows import GalleryWriter, make_model, people

MODEL = make_model("m-one")


def count_steps(resources: Resources, key: IndexKey) -> int:
    """Count the steps that SQLite takes to read the embeddings of an index and to count them, in tens."""
    steps = [0]

    def count() -> int:
        steps[0] += 1
        return 0

    with snapshot(resources.database) as session:
        driver = session.connection().connection.driver_connection
        assert driver is not None
        driver.set_progress_handler(count, 10)
        try:
            read = sum(len(pks) for pks, _ in index_builder.read_embeddings(session, key, 8, NO_COMPENSATION))
            assert index_builder.count_rows(session, key) == (read, read)
        finally:
            driver.set_progress_handler(None, 0)
    return steps[0]


def make_statements() -> dict[str, Select[Any]]:
    """Statements that need the embedding of each face of a collection."""
    return {
        "all": index_builder.EMBEDDINGS_QUERY,
        "added": index_builder.ADDED_EMBEDDINGS_QUERY,
        "counts": index_builder.ROW_COUNTS_QUERY,
        "missing": select_faces_without_embedding("new", "m-two", ["identity"]),
        "questions": question_faces._select_faces(replace(MODEL, id="m-two"), "new", "identity", [], 100),
    }


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("name", make_statements())
def test_each_embedding_is_looked_up_by_the_key_of_its_face(resources: Resources, name: str) -> None:
    """PostgreSQL read all embeddings of a model for each face, while its statistics did not know of the model yet."""
    rows, _ = people(500, 4)
    GalleryWriter(resources, "old").make(MODEL).add({MODEL.id: rows}, [None] * len(rows))
    execute(resources.database, "analyze")
    compiled = make_statements()[name].compile(resources.database, compile_kwargs={"render_postcompile": True})
    values = {"collection": "new", "task": "identity", "model": "m-two", "since": 0}
    asked = {parameter: values.get(parameter, value) for parameter, value in compiled.params.items()}
    with resources.database.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN {compiled}", asked).scalars().all()
    lookups = [line for line in plan if "Index Cond" in line and "face_pk = faces.pk" in line]
    unbound = [line for line in plan if "Index Cond" in line and "model_id" in line and "face_pk" not in line]
    assert (len(lookups) > 0, unbound) == (True, []), "\n".join(plan)


def test_the_embeddings_of_other_collections_are_not_read(lasting_sqlite: Resources) -> None:
    """They were, if both have the same model: a start with thousands of collections took minutes."""
    rows, _ = people(2, 2)
    small, large = (GalleryWriter(lasting_sqlite, name).make(MODEL) for name in ("small", "large"))
    small.add({MODEL.id: rows}, [None] * len(rows))
    key = IndexKey("small", "identity", MODEL.id, 0.0)
    before = count_steps(lasting_sqlite, key)
    for _ in range(20):
        large.add({MODEL.id: rows}, [None] * len(rows))
    assert count_steps(lasting_sqlite, key) <= before + 2
