"""What is read to build an index."""

import pytest

from app.db.session import snapshot
from app.resources import Resources
from app.serving import index_builder
from app.serving.compensation.store import NO_COMPENSATION
from app.serving.index_builder import IndexKey
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


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("statement", ["ADDED_EMBEDDINGS_QUERY", "ROW_COUNTS_QUERY"])
def test_each_embedding_is_looked_up_by_the_key_of_its_face(resources: Resources, statement: str) -> None:
    """While PostgreSQL had no statistics of new rows, it read all embeddings of the model for each face."""
    compiled = getattr(index_builder, statement).compile(resources.database)
    values = {"collection": "c", "task": "identity", "model": "m", "since": 0}
    with resources.database.connect() as connection:
        asked = {name: values[name] for name in compiled.params}
        plan = connection.exec_driver_sql(f"EXPLAIN {compiled}", asked).scalars().all()
    assert any("Index Cond" in line and "face_pk = faces.pk" in line for line in plan), "\n".join(plan)


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
