"""What is read to build an index."""

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
