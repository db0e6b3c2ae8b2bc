"""Faces divided into cells, with a metric of its own in each: what flat and hierarchical clustering share."""

from abc import abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ml.clustering.kmeans import k_means, nearest
from ml.embedders._batches import Batches
from ml.embedders._folds import counted, only
from ml.embedders._lesson import Lesson
from ml.embedders._maps import Linear
from ml.embedders._pairs import tensor
from ml.embedders._projected import norms, project
from ml.embedders._space import with_fellows
from ml.embedders.base import Embedder, Maps, Progress, TaskData, after
from ml.embedders.ldml import Ldml
from ml.errors import TooFewPairs
from ml.types import Ids, Rows


@dataclass(frozen=True, eq=False)
class Node:
    """Faces and what was learned from them. projection: (d, r); means: (fork, d) of its children, or (0, d)."""

    projection: Tensor
    bias: float
    task: TaskData
    means: Tensor


@dataclass
class Divided(Ldml):
    """The root's LDML learns from all faces by the inherited options. A node's faces are divided by k-means where its
    map puts them; each child goes on from the map of its parent with the pairs of its own faces alone. A cell with
    fewer than `needed` pairs of either kind keeps its parent's map. Without a division it is LDML.

    steps, held_out: of the root; local: batches of each node below it; local_rate: their `rate`
    shrink: the l2 regulariser of every node, 0 for none; stay: of every node towards where it started
    wall: added to the squared distance of faces in different cells. 0: they compare as they are, for all maps come
    of the root's and are little moved. Where `unit` is on, 4 or more ranks all of the query's own cell first, as in
    the papers, where nothing else is searched; a face is then stored as dim + cells numbers
    """

    local: int = 100
    local_rate: float = 0.005
    wall: float = 0.0

    @property
    @abstractmethod
    def forks(self) -> tuple[int, ...]:
        """Into how many cells the nodes of each level are divided, the root first."""

    def _common(self, before: Embedder) -> tuple[Rows, Rows]:
        """One linear map, or the root's of another that is divided: cells are found and learned anew."""
        if isinstance(before, Divided) and "gates" in before.learned:
            return before.learned["gates"][0], before.learned["gate_offsets"][0]
        return super()._common(before)

    @property
    def cells(self) -> int:
        return int(np.prod(self.forks))

    def _learn(self, lesson: Lesson, progress: Progress) -> None:
        if len(lesson.task.faces) < self.cells:
            raise TooFewPairs("faces", self.cells, len(lesson.task.faces))
        whole = self.steps + self.local * int(np.cumprod(self.forks).sum())
        model, found = self._one_map(lesson, self.steps, after(0, whole, progress))
        self._note(found)
        if not self.forks:
            self._keep(model.projection, found, lesson.space)
            return
        root = Node(*lesson.scaled(model.projection), lesson.task, model.projection[:0])
        self._keep_cells(lesson, *self._divided(lesson, root, whole, progress))
        progress(whole, whole, {"loss": found.loss})

    def _divided(self, lesson: Lesson, root: Node, whole: int, progress: Progress) -> tuple[list[Node], list[Node]]:
        """The leaves, and the nodes above them level by level."""
        level, above, done = [root], list[Node](), self.steps
        for fork in self.forks:
            below = []
            for node in level:
                z = self._unit(lesson.of(node.task.faces) @ node.projection.T)
                means = k_means(z, fork, self.seed)
                cell = nearest(z, means).cpu().numpy()
                above.append(replace(node, means=means))
                for c in range(fork):
                    child = replace(node, task=only(node.task, cell == c))
                    below.append(self._taught(lesson, child, done, after(done, whole, progress)))
                    done += self.local
            level = below
        return level, above

    def _taught(self, lesson: Lesson, node: Node, number: int, progress: Progress) -> Node:
        """The node after what its own faces teach."""
        if min(counted(node.task)) < self.needed:
            return node
        draw = np.random.default_rng((self.seed, 5, number))
        batches = Batches(node.task, self._sampler(), draw, self.negatives, self.corrections)
        own = Lesson(node.task, lesson.held, lesson.space, lesson.coordinates, batches)
        stay = self.stay * self.prior / max(1, with_fellows(node.task))
        model = Linear(node.projection.clone(), self.shrink * lesson.spread, stay * lesson.spread)
        found = self._descend(own, model, node.bias, self._course(self.local, self.local_rate), progress, looks=False)
        return replace(node, projection=model.projection, bias=found.bias)

    def _unit(self, z: Tensor) -> Tensor:
        return z / z.norm(dim=1, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny) if self.unit else z

    def _keep_cells(self, lesson: Lesson, leaves: list[Node], above: list[Node]) -> None:
        maps, gates = (lesson.space.outside(torch.stack([n.projection for n in nodes])) for nodes in (leaves, above))
        kept = {
            "projection": maps.flatten(0, 1),
            "offset": (maps @ lesson.space.mean).flatten(),
            "gates": gates,
            "gate_offsets": gates @ lesson.space.mean,
            "means": torch.stack([n.means for n in above]),
            "bias": torch.tensor([n.bias for n in leaves]),
        }
        self.learned = {name: value.cpu().numpy() for name, value in kept.items()}
        self.notes["cells"] = [len(n.task.faces) for n in leaves]

    def cell_of(self, rows: Rows) -> Ids:
        """The cell that each row falls into, (N, D) -> (N,) of 0..cells - 1: at each node the nearest of its means."""
        at, first, nodes = np.zeros(len(rows), np.int64), 0, 1
        for fork in self.forks:
            below = at.copy()
            for node in np.unique(at):
                mine = np.flatnonzero(at == node)
                gate, offset, means = (
                    tensor(self.learned[n][first + node]) for n in ("gates", "gate_offsets", "means")
                )
                z = self._unit(torch.addmm(-offset, tensor(rows[mine]), gate.T))
                below[mine] = fork * node + nearest(z, means).numpy()
            at, first, nodes = below, first + nodes, nodes * fork
        return at

    def _embed(self, rows: Rows, task: str) -> Rows:
        cell = self.cell_of(rows)
        z = self._met(rows, cell)
        z = z / norms(z)[:, None] if self.unit else z
        return np.concatenate([z, self._walls()[cell]], axis=1) if self.wall else z

    def _met(self, rows: Rows, cell: Ids) -> Rows:
        """What each row's own map makes of it, (N, dim)."""
        z, (maps, offsets) = np.empty((len(rows), self.dim), np.float32), self._leaves()
        for s in np.unique(cell):
            mine = np.flatnonzero(cell == s)
            z[mine] = project(rows[mine], maps[s], offsets[s])
        return z

    def _leaves(self) -> tuple[Rows, Rows]:
        """(cells, d, D) maps and (cells, d) offsets."""
        maps = self.learned["projection"]
        return maps.reshape(-1, self.dim, maps.shape[1]), self.learned["offset"].reshape(-1, self.dim)

    def _walls(self) -> Rows:
        """(cells, cells) where each cell stands, each `wall` from each other."""
        return np.eye(self.cells, dtype=np.float32) * np.float32((self.wall / 2) ** 0.5)

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        (maps, offsets), cell = self._leaves(), self.cell_of(rows)
        belongs = np.zeros((len(rows), self.cells), np.float32)
        belongs[np.arange(len(rows)), cell] = 1
        shares = belongs / norms(self._met(rows, cell))[:, None] if self.unit else belongs
        if not self.wall:
            return Maps(rows, maps, offsets, shares)
        # the place of a cell is a map of its own, of offsets alone, so that it is not divided by the norm of z
        more, walls = self.cells, self._walls()
        joined = np.zeros((2 * more, self.dim + more, maps.shape[2]), np.float32)
        joined[:more, : self.dim] = maps
        moved = np.block([[offsets, np.zeros_like(walls)], [np.zeros_like(offsets), -walls]])
        return Maps(rows, joined, moved, np.concatenate([shares, belongs], axis=1))
