"""SCML: a metric as a sparse sum of given directions.

Source: Shi, Bellet, Sha 2014; a baseline of 003.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ml.clustering.gaussian_mixture import Mixture, fit_mixture
from ml.embedders.base import Embedder, Maps, Progress, TrainingSet, offset_progress
from ml.errors import TooFewPairs, WrongShape
from ml.metric_learning.fit_data import FitData
from ml.metric_learning.holdout import split_training_set
from ml.metric_learning.initial_maps import fit_regional_discriminants
from ml.metric_learning.linear_embedding import norms, project
from ml.metric_learning.principal_axes import fit_principal_axes
from ml.metric_learning.sparse_weights import LocalWeightLearner, LocalWeights, SparseWeights, WeightLearner
from ml.metric_learning.subspace import Subspace, fit_subspace
from ml.metric_learning.tensors import as_arrays, as_tensor, select_device
from ml.metric_learning.triplets import TripletBatches
from ml.options import option
from ml.types import Rows

GATE_AXES = 32


@dataclass
class Scml(Embedder):
    """z_b = s_b(x) b . x over bases b that tell people apart somewhere, with few s_b above zero.

    Global form (k = 1): d^2 = sum_b w_b (b . u)^2, w >= 0, s_b = sqrt(w_b). Local form: s_b(x) = sum_c q_c(x) a_cb,
    q = p(c | x) of a Gaussian mixture in the global form's space, a_cb >= 0; it starts from the global form. Learned
    from triplets, [1 + d^2(same) - d^2(not the same)]_+. Learns the first task alone.
    """

    dim: int = option(
        128,
        "largest dimension of an embedding; if more bases are used, z is reduced to its leading principal axes",
        low=1,
        unit="numbers",
    )
    bases: int = option(
        600, "number of bases: Fisher's discriminant axes, the same number in each region", low=1, unit="bases"
    )
    regions: int = option(
        10, "k-means cells, in the space of the discriminant of all faces, that have bases of their own", low=1,
        unit="regions",
    )  # fmt: skip
    around: int = option(1500, "faces in a region: those nearest to its mean", low=1, unit="faces")
    ridge: float = option(2e-4, "share of the total variance within people that is added to each axis", low=0)
    prior: float = option(
        300.0,
        "number of labelled faces that weigh as much as the assumption that a person varies as all faces do",
        low=0, unit="faces",
    )  # fmt: skip
    axes: int = option(
        2000,
        "number of principal axes in which bases are computed; fewer are faster; 0: the rows already are such "
        "coordinates",
        low=0,
        unit="axes",
    )
    steps: int = option(500, "batches of the fit of the weights w", low=1, unit="steps")
    held_out: float = option(0.0, "share of people held out to choose the best number of steps", low=0, high=1)
    min_pairs: int = option(
        10, "smallest number of positive pairs, and of negative pairs, that a fit accepts",
        low=0, unit="pairs", formerly="needed",
    )  # fmt: skip
    batch: int = option(1000, "triplets in a batch", low=1, unit="triplets")
    pairs: int = option(100_000, "pairs drawn once, from which triplets are formed", low=1, unit="pairs")
    corrections: float = option(0.2, "share of triplets with a labelled pair, if there are many labels", low=0, high=1)
    sparsity: float = option(1e-2, "weight of the l1 norm of w", low=0)
    pace: float = option(0.01, "1 / gamma of dual averaging", low=0)
    k: int = option(1, "components of the local form; 1: the global form alone", low=1, unit="components")
    local_steps: int = option(200, "batches of the fit of the local form", low=0, unit="steps", formerly="local")
    local_rate: float = option(0.1, "the first step of the local scales a, which falls to zero", low=0)
    local_sparsity: float = option(1e-3, "weight of sum_b |a_.b|_2, which removes bases that no component needs", low=0)
    threshold: float = option(1e-3, "subtracted from each q_c, as in CLML", low=0, high=1)
    unit: bool = option(True, "divide each z by its norm")
    device: str = option("auto", "auto, cpu or cuda", server_only=True)

    @property
    def width(self) -> int | None:
        return self.learned["basis"].shape[1] if self.learned else None

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        fit_data = self._prepare(data)
        task, known = fit_data.task, torch.from_numpy(fit_data.task.faces).to(fit_data.coordinates.device)
        self.tasks = (task.task,)
        shape = (self.bases, self.regions, self.around, self.ridge, self.prior, self.seed)
        basis = fit_regional_discriminants(fit_data.known, task, *shape)
        p = fit_data.coordinates @ basis.T
        batches = TripletBatches(task, np.random.default_rng((self.seed, 6)), self.pairs, self.corrections)
        w = self._fit_weights(fit_data, p, batches, progress)
        left = _find_used(w[None], "sparsity", self.sparsity)
        p, start = p[:, left], w[left].sqrt()
        axes, deviations, _ = fit_principal_axes(p[known] * start, min(GATE_AXES, len(left)), self.seed)
        gate = axes[deviations > 0.1 * deviations[0]] * start  # the others are noise to a mixture
        mixture = fit_mixture(p[known] @ gate.T, self.k, self.seed)
        q = mixture.assign(p @ gate.T, self.threshold)
        local = LocalWeights(start.repeat(self.k, 1), q, self.local_sparsity)
        if self.k > 1:
            learner = LocalWeightLearner(local, p, batches, self.batch, self.local_rate, self.local_steps)
            learner.run(offset_progress(self.steps, self._total_steps, progress))
        self._keep(local, local.transform(p)[known], fit_data.subspace, basis[left], gate, mixture)

    def _prepare(self, data: TrainingSet) -> FitData:
        """Project the first task to its subspace, and hold people out. Raises TooFewPairs."""
        task, held_out = split_training_set(data, self.min_pairs, self.held_out, self.seed)
        if len(task.faces) < self.k:
            raise TooFewPairs("faces", self.k, len(task.faces))
        rows = as_tensor(data.rows, select_device(self.device))
        subspace = fit_subspace(rows, task.faces, self.axes, self.seed, widths=data.widths)
        return FitData(subspace.project(rows), subspace, (task,), held_out)

    @property
    def _total_steps(self) -> int:
        return self.steps + (self.local_steps if self.k > 1 else 0)

    def _fit_weights(self, data: FitData, p: Tensor, batches: TripletBatches, progress: Progress) -> Tensor:
        """Fit w of the global form, (bases,). p: (N, bases), b . x of each face"""
        weights = SparseWeights(p.new_zeros(p.shape[1]), self.sparsity, self.pace)
        score = data.make_score(lambda faces: p[torch.from_numpy(faces).to(p.device)] * weights.w.sqrt())
        learner = WeightLearner(weights, p, batches, self.batch)
        outcome = learner.run(self.steps, offset_progress(0, self._total_steps, progress), score)
        self.notes = outcome.notes
        return learner.best

    def _keep(
        self, local: LocalWeights, z: Tensor, subspace: Subspace, basis: Tensor, gate: Tensor, mixture: Mixture
    ) -> None:
        """Set the learned arrays. z: (n, bases) of the task's faces"""
        used = _find_used(local.scales, "local_sparsity", self.local_sparsity)
        z = z[:, used]
        count, basis = z.shape[1], subspace.lift(basis)
        turn = torch.eye(count, device=z.device)
        if count > self.dim:
            turn = fit_principal_axes(z, self.dim, self.seed)[0]
        kept = {
            "basis": basis,
            "offset": basis @ subspace.mean,
            "scales": local.scales,
            "turn": z.new_zeros(len(turn), len(basis)).index_copy_(1, used, turn),
            "gate": gate,
            "means": mixture.means,
            "variances": mixture.variances,
            "log_weights": mixture.log_weights,
        }
        self.learned = as_arrays(kept)
        self.notes["bases"] = count

    def assignments(self, rows: Rows) -> Rows:
        """Return the shares q of (N, D) rows in the components: (N, k); each row sums to 1."""
        return self._assign(project(rows, self.learned["basis"], self.learned["offset"]))

    def _assign(self, p: Rows) -> Rows:
        if self.k == 1:
            return np.ones((len(p), 1), np.float32)
        mixture = Mixture(*(as_tensor(self.learned[n]) for n in ("means", "variances", "log_weights")))
        q: Rows = mixture.assign(as_tensor(p @ self.learned["gate"].T), self.threshold).numpy()
        return q

    def _embed(self, rows: Rows, task: str) -> Rows:
        z = self._project(rows)
        return z / norms(z)[:, None] if self.unit else z

    def _project(self, rows: Rows) -> Rows:
        """Embed (N, D) rows before the division by the norm: (N, d)."""
        p = project(rows, self.learned["basis"], self.learned["offset"])
        p *= self._assign(p) @ self.learned["scales"]
        z: Rows = p @ self.learned["turn"].T
        return z

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        turned = [self.learned["turn"] * scale for scale in self.learned["scales"]]
        shares = self.assignments(rows)
        if self.unit:
            shares = shares / norms(self._project(rows))[:, None]
        projections = np.stack([turn @ self.learned["basis"] for turn in turned])
        return Maps(rows, projections, np.stack([turn @ self.learned["offset"] for turn in turned]), shares)


def _find_used(scales: Tensor, option_name: str, sparsity: float) -> Tensor:
    """Return the indexes of bases with a scale above zero. scales: (k, bases). Raises WrongShape if there are none."""
    left = torch.nonzero(scales.any(0)).flatten()
    if not len(left):
        raise WrongShape(option_name, "so small that at least one base is used", sparsity)
    return left
