"""The least FastAPI program that searches an index, as the limit of what a service can reach.

`python -m benchmarks.limit_server VECTORS.npy PORT CELLS PROBED` answers `POST /search {"vector": [...]}` with the
positions and distances of the ten nearest vectors. It has no keys, no names, no decision and no limits.
"""

import sys
from pathlib import Path

import faiss
import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

NEAREST = 10


class Query(BaseModel):
    """A vector to search with."""

    vector: list[float]


class Neighbours(BaseModel):
    """The nearest vectors."""

    ids: list[int]
    distances: list[float]


def build_index(path: Path, cells: int, probed: int) -> faiss.Index:
    """Build an index of the (n, dim) vectors in a file: of `cells` cells, `probed` of them searched; one: flat."""
    vectors = np.load(path)
    if cells == 1:
        index = faiss.IndexFlatL2(vectors.shape[1])
    else:
        index = faiss.IndexIVFFlat(faiss.IndexFlatL2(vectors.shape[1]), vectors.shape[1], cells)
        index.nprobe = probed
        index.train(vectors[:: max(1, len(vectors) // (64 * cells))])
    index.add(vectors)
    return index


def create_app(index: faiss.Index) -> FastAPI:
    """Create the program that searches this index."""
    app = FastAPI()

    @app.post("/search")
    async def search(query: Query) -> Neighbours:
        distances, ids = index.search(np.array([query.vector], np.float32), NEAREST)
        return Neighbours(ids=ids[0].tolist(), distances=distances[0].tolist())

    return app


if __name__ == "__main__":
    faiss.omp_set_num_threads(1)
    source, port, cell_count, probed_count = sys.argv[1:]
    made = create_app(build_index(Path(source), int(cell_count), int(probed_count)))
    uvicorn.run(made, port=int(port), log_level="warning", access_log=False)
