import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from ml.clustering.gaussian_mixture import Mixture, fit_mixture


def blobs(seed: int, k: int, d: int, n: int = 600) -> torch.Tensor:
    draw = np.random.default_rng(seed)
    centres, widths = 4 * draw.normal(size=(k, d)), draw.uniform(0.3, 1.5, (k, d))
    which = draw.integers(0, k, n)
    return torch.from_numpy(centres[which] + widths[which] * draw.normal(size=(n, d)))


@pytest.mark.parametrize(("seed", "k", "d"), [(0, 1, 3), (1, 3, 2), (2, 5, 8), (3, 8, 4)])
def test_assignments_are_those_of_scikit_learn_for_the_same_mixture(seed: int, k: int, d: int) -> None:
    z = blobs(seed, k, d)
    ours = fit_mixture(z, k, seed)
    oracle = GaussianMixture(k, covariance_type="diag")
    oracle.weights_, oracle.means_ = ours.log_weights.exp().numpy(), ours.means.numpy()
    oracle.covariances_, oracle.precisions_cholesky_ = ours.variances.numpy(), ours.variances.rsqrt().numpy()
    q = ours.assign(z).numpy()
    np.testing.assert_allclose(q, oracle.predict_proba(z.numpy()), atol=1e-9)
    np.testing.assert_allclose(q.sum(1), 1, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_likelihood_reaches_scikit_learns_best_of_three(seed: int) -> None:
    z = blobs(seed, 4, 5)
    ours = max(float(fit_mixture(z, 4, s).log_joint(z).logsumexp(1).mean()) for s in range(3))
    oracle = GaussianMixture(4, covariance_type="diag", n_init=3, random_state=seed).fit(z.numpy())
    assert ours > oracle.score(z.numpy()) - 0.05


def test_thresholded_assignments_are_continuous() -> None:
    one = torch.ones(1, 3)
    mixture = Mixture(torch.zeros(3, 1), one.T, torch.zeros(3))
    far = Mixture(torch.tensor([[0.0], [3.0], [6.0]]), one.T, torch.zeros(3))
    z = torch.linspace(0, 6, 2001)[:, None]
    q = far.assign(z, 0.05)
    assert float((q[1:] - q[:-1]).abs().max()) < 0.01
    assert bool((q == 0).any())
    assert torch.allclose(mixture.assign(torch.zeros(1, 1), 0.2), torch.full((1, 3), 1 / 3))


def test_no_component_is_narrower_than_the_floor() -> None:
    z = blobs(4, 3, 4)
    z[:200] = z[0]
    mixture = fit_mixture(z, 5, floor=1e-2)
    assert bool((mixture.variances >= 1e-2 * z.var(0, unbiased=False) * (1 - 1e-6)).all())
