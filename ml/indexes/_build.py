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
from ml.indexes.reranked import Reranked
from ml.metric import EUCLIDEAN, Metric
from ml.types import Ids, Rows

Device = Literal["auto", "cpu", "cuda"]


def build(
    ids: Ids,
    rows: Rows,
    metric: Metric = EUCLIDEAN,
    *,
    p: int | None = None,
    m: int | None = None,
    device: Device = "auto",
    seed: int = 0,
) -> Index:
    """An index of these (N, d) rows: flat for up to `SMALL` of them or p = 1, else an `Ivf` trained on them; a
    `Reranked` of either for a metric that no index knows."""
    cells = p or default_cells(len(rows))
    several = cells > 1 and len(rows) > 0
    index: Index = Flat(rows.shape[1], metric)
    if metric.kind == "average":
        index = Reranked(rows.shape[1], metric, p=cells if several else 1, m=m, device=device, seed=seed)
    elif several:
        index = Ivf(rows.shape[1], metric, p=cells, m=m, device=device, seed=seed)
    index.add(ids, rows)
    return index


def load(path: Path, digest: str, *, device: Device = "auto") -> Index:
    """What `Index.save` wrote and gave this SHA-256 for. Raises Corrupt where the file is not that."""
    header, lists = read(path, digest)
    try:
        dim, metric = header["dim"], Metric.from_dict(header["metric"])
        if header["kind"] == "Reranked":
            return Reranked.restored(dim, metric, header["state"], lists, device)
        index: Lists = Flat(dim, metric) if header["kind"] == "Flat" else Ivf(dim, metric, device=device)
        index._restore(header["state"], lists)
    except (KeyError, TypeError) as error:
        raise Corrupt(f"the index in {path.name} lacks {error}; build it again from the rows") from error
    return index
