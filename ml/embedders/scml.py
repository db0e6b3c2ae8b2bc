"""SCML: a metric as a sparse sum of directions given beforehand (Shi, Bellet, Sha 2014; a baseline of 003)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ml.clustering.gaussian_mixture import Mixture, fit_mixture
from ml.embedders._bases import local_discriminants
from ml.embedders._folds import teaching, watch
from ml.embedders._pairs import device_of, principal, tensor
from ml.embedders._projected import norms, project
from ml.embedders._space import Space, principal_space
from ml.embedders._sparse import LocalWeights, Weights, localised, weighed
from ml.embedders._triplets import Triplets
from ml.embedders.base import Embedder, Maps, Progress, TaskData, TrainingSet, after
from ml.errors import TooFewPairs, WrongShape
from ml.types import Rows

GATE_AXES = 32


@dataclass
class Scml(Embedder):
    """z_b = s_b(x) b . x over bases b that tell people apart somewhere, with few s_b above zero.

    Global form (k = 1): d^2 = sum_b w_b (b . u)^2, w >= 0, s_b = sqrt(w_b). Local form: s_b(x) = sum_c q_c(x) a_cb,
    q = p(c | x) of a Gaussian mixture in the global form's space, a_cb >= 0; it starts from the global form. Learned
    from triplets, [1 + d^2(same) - d^2(not the same)]_+. Learns the first task alone.

    dim: numbers stored at most: where more bases are left, the leading principal axes of z
    bases: Fisher's axes, as many of each of the `regions`, which are the `around` faces nearest to a k-means mean in
    the space of the discriminant of all (ridge, prior, axes as LDML has them)
    steps: batches of `batch` triplets for w, judged by the people held out (held_out, needed, corrections as LDML has
    them); pairs: how many pairs of the same are drawn for them beforehand
    sparsity: weight of the l1 norm of w; pace: 1 / gamma of dual averaging
    k: components of the local form; local, local_rate: its batches and the step of a, at first; local_sparsity: weight
    of sum_b |a_.b|_2, by which a base that no part of the faces needs goes
    threshold: taken off each q_c, as CLML does; unit: divide each z by its norm
    """

    dim: int = 128
    bases: int = 600
    regions: int = 10
    around: int = 1500
    ridge: float = 2e-4
    prior: float = 300.0
    axes: int = 2000
    steps: int = 500
    held_out: float = 0.0
    needed: int = 10
    batch: int = 1000
    pairs: int = 100_000
    corrections: float = 0.2
    sparsity: float = 1e-2
    pace: float = 0.01
    k: int = 1
    local: int = 200
    local_rate: float = 0.1
    local_sparsity: float = 1e-3
    threshold: float = 1e-3
    unit: bool = True
    device: str = "auto"

    @property
    def width(self) -> int | None:
        return self.learned["basis"].shape[1] if self.learned else None

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        task, held = teaching(data, self.needed, self.held_out, self.seed)
        if len(task.faces) < self.k:
            raise TooFewPairs("faces", self.k, len(task.faces))
        self.tasks = (task.task,)
        rows = tensor(data.rows, device_of(self.device))
        space = principal_space(rows, task.faces, self.axes, self.seed, widths=data.widths)
        x, faces = space(rows), torch.from_numpy(task.faces).to(rows.device)
        known = (self.bases, self.regions, self.around, self.ridge, self.prior, self.seed)
        basis = local_discriminants(x[faces], task, *known)
        p = x @ basis.T
        draws = Triplets(task, np.random.default_rng((self.seed, 6)), self.pairs, self.corrections)

        def draw() -> Tensor:
            return torch.from_numpy(draws.draw(self.batch)).to(p.device)

        w = self._weigh(p, draw, held, progress)
        left = _used(w[None], "sparsity", self.sparsity)
        p, start = p[:, left], w[left].sqrt()
        axes, deviations, _ = principal(p[faces] * start, min(GATE_AXES, len(left)), self.seed)
        gate = axes[deviations > 0.1 * deviations[0]] * start  # a mixture would hear the noise of the others
        mixture = fit_mixture(p[faces] @ gate.T, self.k, self.seed)
        q = mixture.assign(p @ gate.T, self.threshold)
        local = LocalWeights(start.repeat(self.k, 1), q, self.local_sparsity)
        if self.k > 1:
            localised(local, p, draw, self.local, self.local_rate, after(self.steps, self._whole, progress))
        self._keep(local, p, faces, space.outside(basis[left]), space, gate, mixture)

    @property
    def _whole(self) -> int:
        return self.steps + (self.local if self.k > 1 else 0)

    def _weigh(self, p: Tensor, draw: Callable[[], Tensor], held: TaskData, progress: Progress) -> Tensor:
        """w of the global form. p: (N, bases)."""
        weights = Weights(p.new_zeros(p.shape[1]), self.sparsity, self.pace)
        look = watch(lambda faces: p[torch.from_numpy(faces).to(p.device)] * weights.w.sqrt(), held)
        w, self.notes = weighed(weights, p, draw, self.steps, after(0, self._whole, progress), look)
        return w

    def _keep(
        self, local: LocalWeights, p: Tensor, faces: Tensor, basis: Tensor, space: Space, gate: Tensor, mixture: Mixture
    ) -> None:
        used = _used(local.scales, "local_sparsity", self.local_sparsity)
        z = local.placed(p)[faces][:, used]
        count = z.shape[1]
        turn = principal(z, self.dim, self.seed)[0] if count > self.dim else torch.eye(count, device=z.device)
        kept = {
            "basis": basis,
            "offset": basis @ space.mean,
            "scales": local.scales,
            "turn": z.new_zeros(len(turn), len(basis)).index_copy_(1, used, turn),
            "gate": gate,
            "means": mixture.means,
            "variances": mixture.variances,
            "log_weights": mixture.log_weights,
        }
        self.learned = {name: value.cpu().numpy() for name, value in kept.items()}
        self.notes["bases"] = count

    def assignments(self, rows: Rows) -> Rows:
        """q: (N, D) -> (N, k), its rows sum to 1."""
        return self._assigned(project(rows, self.learned["basis"], self.learned["offset"]))

    def _assigned(self, p: Rows) -> Rows:
        if self.k == 1:
            return np.ones((len(p), 1), np.float32)
        mixture = Mixture(*(tensor(self.learned[n]) for n in ("means", "variances", "log_weights")))
        q: Rows = mixture.assign(tensor(p @ self.learned["gate"].T), self.threshold).numpy()
        return q

    def _embed(self, rows: Rows, task: str) -> Rows:
        z = self._met(rows)
        return z / norms(z)[:, None] if self.unit else z

    def _met(self, rows: Rows) -> Rows:
        """(N, D) -> (N, d), before it is brought to unit length."""
        p = project(rows, self.learned["basis"], self.learned["offset"])
        p *= self._assigned(p) @ self.learned["scales"]
        z: Rows = p @ self.learned["turn"].T
        return z

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        turned = [self.learned["turn"] * scale for scale in self.learned["scales"]]
        shares = self.assignments(rows)
        if self.unit:
            shares = shares / norms(self._met(rows))[:, None]
        projections = np.stack([turn @ self.learned["basis"] for turn in turned])
        return Maps(rows, projections, np.stack([turn @ self.learned["offset"] for turn in turned]), shares)


def _used(scales: Tensor, option: str, sparsity: float) -> Tensor:
    """The bases with a scale above zero. scales: (k, bases)."""
    left = torch.nonzero(scales.any(0)).flatten()
    if not len(left):
        raise WrongShape(option, "so small that a base is left", sparsity)
    return left
