"""Cells of faces with a metric in each: the base of flat and hierarchical clustering."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ml.clustering.kmeans import k_means, nearest
from ml.embedders.base import Embedder, Maps, Progress, TaskData, TrainingSet, offset_progress
from ml.errors import TooFewPairs
from ml.metric_learning.holdout import count_pairs, scale_proximal_weight, select_faces
from ml.metric_learning.linear_embedding import get_linear_map, get_width, norms, project, require_linear_map
from ml.metric_learning.logistic.learner import descend
from ml.metric_learning.logistic.options import BatchOptions, MapOptions
from ml.metric_learning.logistic.trainer import LogisticTrainer, export_linear
from ml.metric_learning.tensors import as_arrays, as_tensor
from ml.options import option, option_group
from ml.types import Ids, Rows


@dataclass(frozen=True, eq=False)
class CellNode:
    """Faces and the map learned from them. projection: (d, r); means: (fork, d) of the children, or (0, d)"""

    projection: Tensor
    bias: float
    task: TaskData
    means: Tensor


@dataclass
class ClusteredMaps(Embedder):
    """A tree of LDML maps. The root learns from all faces. A node's faces are divided by k-means of their embeddings;
    each child starts from the map of its parent and learns from the pairs of its own faces alone. A cell with fewer
    than `min_pairs` pairs of either kind keeps its parent's map. Without a division it is LDML.
    """

    dim: int = option(128, "numbers of an embedding", low=1, unit="numbers")
    steps: int = option(300, "batches of the root", low=1, unit="steps")
    held_out: float = option(
        0.0, "share of people held out to choose the best number of steps of the root", low=0, high=1
    )
    unit: bool = option(True, "divide each z by its norm")
    device: str = option("auto", "auto, cpu or cuda", server_only=True)
    batches: BatchOptions = option_group(BatchOptions)
    map: MapOptions = option_group(MapOptions)
    local_steps: int = option(100, "batches of each node below the root", low=0, unit="steps", formerly="local")
    local_rate: float = option(0.005, "Adam's step for the nodes below the root", low=0)
    wall: float = option(
        0.0,
        "added to the squared distance of faces in different cells; 0: nothing is added, because all maps start from "
        "the root's. With unit length, 4 or more ranks all faces of the query's cell first, as in the papers, which "
        "search that cell alone; dim + cells numbers are then stored per face",
        low=0,
    )

    @property
    @abstractmethod
    def forks(self) -> tuple[int, ...]:
        """The number of cells into which the nodes of each level are divided, from the root."""

    @property
    def cells(self) -> int:
        return int(np.prod(self.forks))

    @property
    def width(self) -> int | None:
        return get_width(self.learned)

    def start_from(self, model: Embedder) -> Self:
        """Start from one linear map, or from the root of another tree; cells are fitted anew."""
        if isinstance(model, ClusteredMaps) and "gates" in model.learned:
            projection, offset = model.learned["gates"][0], model.learned["gate_offsets"][0]
        else:
            projection, offset = require_linear_map(self, model)
        self.learned = {"projection": projection, "offset": offset}
        self.start_model, self.dim, self.map = model, len(projection), replace(self.map, start="learned")
        return self

    def linear_map(self) -> tuple[Rows, Rows] | None:
        return None if "gates" in self.learned else get_linear_map(self, self.learned)

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        trainer = LogisticTrainer(self, data)
        task = trainer.data.task
        self.tasks = (task.task,)
        if len(task.faces) < self.cells:
            raise TooFewPairs("faces", self.cells, len(task.faces))
        total = self.steps + self.local_steps * int(np.cumprod(self.forks).sum())
        fitted = trainer.fit_linear(self.steps, offset_progress(0, total, progress))
        self.notes = fitted.outcome.notes
        if not self.forks:
            self.learned = export_linear(fitted, trainer.data.subspace)
            return
        root = CellNode(*trainer.rescale(fitted.map.projection), task, fitted.map.projection[:0])
        self._keep(trainer, *self._grow(trainer, root, total, progress))
        loss = fitted.outcome.loss[0]
        progress(total, total, {} if loss is None else {"loss": loss})

    def _grow(
        self, trainer: LogisticTrainer, root: CellNode, total: int, progress: Progress
    ) -> tuple[list[CellNode], list[CellNode]]:
        """Grow the tree; return the leaves, and the nodes above them level by level."""
        level, above, done = [root], list[CellNode](), self.steps
        for fork in self.forks:
            below = []
            for node in level:
                z = self._normalise(trainer.data.select(node.task.faces) @ node.projection.T)
                means = k_means(z, fork, self.seed)
                cell = nearest(z, means).cpu().numpy()
                above.append(replace(node, means=means))
                for c in range(fork):
                    child = replace(node, task=select_faces(node.task, cell == c))
                    below.append(self._fit_node(trainer, child, done, offset_progress(done, total, progress)))
                    done += self.local_steps
            level = below
        return level, above

    def _fit_node(self, trainer: LogisticTrainer, node: CellNode, number: int, progress: Progress) -> CellNode:
        """Fit a node to its own faces. number: determines its random numbers"""
        if min(count_pairs(node.task)) < self.batches.min_pairs:
            return node
        batches = trainer.make_batches(node.task, np.random.default_rng((self.seed, 5, number)))
        proximal = scale_proximal_weight(self.map.proximal_weight, self.map.prior, node.task)
        model = trainer.make_map(node.projection.clone(), proximal)
        schedule = trainer.make_schedule(self.local_steps, self.local_rate)
        bias, _ = descend(trainer.data, model, batches, node.bias, schedule, progress, early_stopping=False)
        return replace(node, projection=model.projection, bias=bias)

    def _normalise(self, z: Tensor) -> Tensor:
        return z / z.norm(dim=1, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny) if self.unit else z

    def _keep(self, trainer: LogisticTrainer, leaves: list[CellNode], above: list[CellNode]) -> None:
        subspace = trainer.data.subspace
        maps, gates = (subspace.lift(torch.stack([n.projection for n in nodes])) for nodes in (leaves, above))
        kept = {
            "projection": maps.flatten(0, 1),
            "offset": (maps @ subspace.mean).flatten(),
            "gates": gates,
            "gate_offsets": gates @ subspace.mean,
            "means": torch.stack([n.means for n in above]),
            "bias": torch.tensor([n.bias for n in leaves]),
        }
        self.learned = as_arrays(kept)
        self.notes["cells"] = [len(n.task.faces) for n in leaves]

    def find_cells(self, rows: Rows) -> Ids:
        """Find the cell of each row, (N, D) -> (N,) of 0..cells - 1: at each node, the child with the nearest mean."""
        current, first, nodes = np.zeros(len(rows), np.int64), 0, 1
        for fork in self.forks:
            below = current.copy()
            for node in np.unique(current):
                members = np.flatnonzero(current == node)
                gate, offset, means = (
                    as_tensor(self.learned[n][first + node]) for n in ("gates", "gate_offsets", "means")
                )
                z = self._normalise(torch.addmm(-offset, as_tensor(rows[members]), gate.T))
                below[members] = fork * node + nearest(z, means).numpy()
            current, first, nodes = below, first + nodes, nodes * fork
        return current

    def _embed(self, rows: Rows, task: str) -> Rows:
        cell = self.find_cells(rows)
        z = self._project(rows, cell)
        z = z / norms(z)[:, None] if self.unit else z
        return np.concatenate([z, self._make_walls()[cell]], axis=1) if self.wall else z

    def _project(self, rows: Rows, cell: Ids) -> Rows:
        """Map each row by the map of its cell, (N, dim), before the division by the norm."""
        z, (maps, offsets) = np.empty((len(rows), self.dim), np.float32), self._get_leaves()
        for s in np.unique(cell):
            members = np.flatnonzero(cell == s)
            z[members] = project(rows[members], maps[s], offsets[s])
        return z

    def _get_leaves(self) -> tuple[Rows, Rows]:
        """Return the maps (cells, d, D) and offsets (cells, d)."""
        maps = self.learned["projection"]
        return maps.reshape(-1, self.dim, maps.shape[1]), self.learned["offset"].reshape(-1, self.dim)

    def _make_walls(self) -> Rows:
        """Return (cells, cells): a point for each cell, at squared distance `wall` from all others."""
        return np.eye(self.cells, dtype=np.float32) * np.float32((self.wall / 2) ** 0.5)

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        (maps, offsets), cell = self._get_leaves(), self.find_cells(rows)
        belongs = np.zeros((len(rows), self.cells), np.float32)
        belongs[np.arange(len(rows)), cell] = 1
        shares = belongs / norms(self._project(rows, cell))[:, None] if self.unit else belongs
        if not self.wall:
            return Maps(rows, maps, offsets, shares)
        # the point of a cell is a map of its own with only an offset, so that it is not divided by the norm of z
        count, walls = self.cells, self._make_walls()
        joined = np.zeros((2 * count, self.dim + count, maps.shape[2]), np.float32)
        joined[:count, : self.dim] = maps
        moved = np.block([[offsets, np.zeros_like(walls)], [np.zeros_like(offsets), -walls]])
        return Maps(rows, joined, moved, np.concatenate([shares, belongs], axis=1))
