"""Which index a collection gets, and how one comes back from its snapshot."""

from pathlib import Path
from typing import Literal

from ml.errors import Corrupt
from ml.indexes._cells import default_cells
from ml.indexes._faiss import Lists
from ml.indexes._storage import read
from ml.indexes.base import Index
from ml.indexes.flat import Flat
from ml.indexes.ivf import Ivf
from ml.types import Ids, Metric, Rows

Device = Literal["auto", "cpu", "cuda"]


def build(
    ids: Ids,
    rows: Rows,
    metric: Metric = "l2",
    *,
    p: int | None = None,
    m: int | None = None,
    device: Device = "auto",
    seed: int = 0,
) -> Index:
    """An index of these (N, d) rows: flat for up to `SMALL` of them or p = 1, else an `Ivf` trained on them."""
    cells = p or default_cells(len(rows))
    index: Index = Flat(rows.shape[1], metric)
    if cells > 1 and len(rows):
        index = Ivf(rows.shape[1], metric, p=cells, m=m, device=device, seed=seed)
    index.add(ids, rows)
    return index


def load(path: Path, digest: str, *, device: Device = "auto") -> Index:
    """What `Index.save` wrote and gave this SHA-256 for. Raises Corrupt where the file is not that."""
    header, lists = read(path, digest)
    try:
        dim, metric = header["dim"], header["metric"]
        index: Lists = Flat(dim, metric) if header["kind"] == "Flat" else Ivf(dim, metric, device=device)
        index._restore(header["state"], lists)
    except (KeyError, TypeError) as error:
        raise Corrupt(f"the index in {path.name} lacks {error}; build it again from the rows") from error
    return index
