"""Build the index that suits a collection, and load one from its snapshot."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml import registry
from ml.distances import EUCLIDEAN, Distance
from ml.errors import Corrupt, WrongShape
from ml.indexes.base import Device, Index, IndexOptions
from ml.indexes.common.cells import default_cell_count
from ml.indexes.common.snapshot_file import open_snapshot
from ml.types import Ids, Rows


def build(
    ids: Ids,
    rows: Rows,
    metric: Distance = EUCLIDEAN,
    *,
    name: str | None = None,
    p: int | None = None,
    m: int | None = None,
    device: Device = "auto",
    seed: int = 0,
    folder: Path | None = None,
    further: Mapping[str, Any] | None = None,
) -> Index:
    """Build an index of (N, d) rows under (N,) ids.

    name: a component of `ml/indexes`; None: the one that suits the number of cells and the metric
    p: number of cells; None: `default_cell_count` of N, which is 1 for a small collection. For the others see
        `IndexOptions`.
    Raises WrongShape if no index can search by this metric.
    """
    cells = p or default_cell_count(len(rows))
    several = cells > 1 and len(rows) > 0
    component = registry.component("indexes", name or _choose_name(cells if several else 1, metric))
    options = IndexOptions(cells if several else 1, m, device, seed, folder, further or {})
    index: Index = component.create(rows.shape[1], metric, options)
    index.add(ids, rows)
    return index


def _choose_name(cells: int, metric: Distance) -> str:
    names = registry.names("indexes")
    suitable = [name for name in names if registry.component("indexes", name).suits(cells, metric)]
    if not suitable:
        raise WrongShape("metric", "one that an index can search by", metric)
    return suitable[0]


def load(path: Path, digest: str, *, device: Device = "auto") -> Index:
    """Load the index that `Index.save` wrote to `path`, returning this SHA-256. Raises Corrupt for any other file."""
    with open_snapshot(path, digest) as (header, body):
        try:
            index: Index = registry.component("indexes", header["kind"].lower()).restore(header, body, device)
        except (KeyError, TypeError, AttributeError) as error:
            raise Corrupt(f"the index in {path.name} lacks {error}; build it again from the rows") from error
    return index
