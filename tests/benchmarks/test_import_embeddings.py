"""The benchmark of imported vectors measures an import that enrols every vector."""

import pytest

from benchmarks.import_embeddings import COLLECTION, draw_rows, import_rows, make_table, measure_faiss
from tests.service import Service


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_every_vector_is_enrolled_under_its_person(service: Service) -> None:
    rows = draw_rows(105, 8)
    service.client.put(COLLECTION, json={"descriptor": {"external": {"dim": 8, "metric": "l2"}}}).raise_for_status()
    measured = import_rows(service.client, rows, make_table(len(rows)))
    assert 0 < measured["upload_seconds"] < measured["import_seconds"] <= measured["cells_seconds"]
    collection = service.client.get(COLLECTION).json()
    assert (collection["face_count"], collection["subject_count"]) == (105, 11)


def test_the_reference_trains_and_fills_an_index() -> None:
    measured = measure_faiss(draw_rows(2000, 8), 16)
    assert 0 < measured["faiss_train_seconds"] <= measured["faiss_seconds"]
