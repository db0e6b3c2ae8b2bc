"""Fisher vectors: equal to scikit-image's and to loops over patches, and the gradient that they claim to be."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from numpy.typing import NDArray
from skimage.feature import fisher_vector
from sklearn.mixture import GaussianMixture

from benchmarks import vlfeat
from ml.aligners.similarity import Similarity
from ml.descriptors.common.fisher_encoder import Encoder
from ml.descriptors.common.vocabulary import Vocabulary
from ml.descriptors.fisher import Fisher
from ml.errors import Corrupt, TooFewPairs, Unavailable, WrongShape
from ml.synthetic_faces import person, photograph
from ml.types import Crops
from tests.ml.test_dense_sift import slow_root_sift

Floats = NDArray[np.float64]


@lru_cache
def faces(people: int, shots: int, first: int = 0) -> Crops:
    """(people * shots, 170, 100): drawn, person after person."""
    drawn = (
        photograph(person(who), 1000 * who + shot, 160) for who in range(first, first + people) for shot in range(shots)
    )
    return np.stack([Similarity().crops(*one)["grey"] for one in drawn])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Fisher:
    """Learn a vocabulary of few axes and Gaussians, for speed."""
    return Fisher(**Fisher.learn(faces(12, 1), tmp_path_factory.mktemp("words"), axes=10, components=6, patches=200))


def words(d: int, k: int, seed: int) -> Vocabulary:
    """Draw a vocabulary whose Gaussians are so near to each other that they share patches."""
    draw = np.random.default_rng(seed)
    axes = np.linalg.qr(draw.normal(size=(128, d)))[0].T
    weights = draw.dirichlet(np.full(k, 3.0))
    parts = (axes, draw.uniform(0, 0.1, 128), 0.2 * draw.normal(size=(k, d + 2)), draw.uniform(0.02, 0.3, (k, d + 2)))
    return Vocabulary(*(part.astype(np.float32) for part in (*parts, np.log(weights))))


def oracle(vocabulary: Vocabulary) -> GaussianMixture:
    mixture = GaussianMixture(len(vocabulary.means), covariance_type="diag")
    mixture.weights_ = np.exp(vocabulary.log_weights.astype(np.float64))
    mixture.means_ = vocabulary.means.astype(np.float64)
    mixture.covariances_ = vocabulary.variances.astype(np.float64)
    mixture.precisions_cholesky_ = mixture.covariances_**-0.5
    return mixture


def encoders(vocabulary: Vocabulary, stride: int = 1) -> tuple[Encoder, Encoder]:
    """Return encoders in double and in single precision."""
    return Encoder(vocabulary, stride, "cpu", torch.float64), Encoder(vocabulary, stride, "cpu")


def of(encoder: Encoder, crop: Crops) -> tuple[Floats, Floats]:
    """Return the (T, d + 2) input of the mixture for a crop, and the Fisher vector before the square root."""
    both = encoder.lifted(torch.from_numpy(crop[None]))
    seen = both.chunk(2, dim=2)[0]
    return seen[0].double().numpy(), encoder.fisher_vectors(both)[0].double().numpy()


@pytest.mark.parametrize(("d", "k", "stride"), [(64, 128, 1), (64, 128, 3), (5, 7, 2), (1, 1, 4)])
def test_it_equals_scikit_images_up_to_the_sign_of_the_deviations(d: int, k: int, stride: int) -> None:
    vocabulary, crop = words(d, k, k + stride), faces(12, 1)[stride]
    exact, quick = encoders(vocabulary, stride)
    seen, raw = of(exact, crop)
    theirs = fisher_vector(seen, oracle(vocabulary))[k:]
    theirs[theirs.size // 2 :] *= -1
    np.testing.assert_allclose(raw, theirs, rtol=1e-6, atol=1e-9 * np.abs(theirs).max())
    assert np.linalg.norm(of(quick, crop)[1] - raw) < 1e-5 * np.linalg.norm(raw)


def test_it_equals_vlfeats_own() -> None:
    vl = vlfeat.library()
    if vl is None:
        pytest.skip("libvl is not installed (Debian: libvlfeat1)")
    vocabulary = words(64, 128, 5)
    seen, raw = of(encoders(vocabulary, 2)[0], faces(12, 1)[5])
    weights = np.exp(vocabulary.log_weights)
    theirs = vlfeat.fisher_vector(vl, vocabulary.means, vocabulary.variances, weights, seen.astype(np.float32), 0)
    assert np.linalg.norm(raw - theirs) < 1e-4 * np.linalg.norm(raw)


def test_a_whole_face_is_16896_numbers_of_norm_one_from_11319_patches() -> None:
    exact, quick = encoders(words(64, 128, 0))
    crops = faces(12, 1)[:2]
    assert exact.lifted(torch.from_numpy(crops)).shape == (2, 147 * 77, 2 * 66)
    rows = quick.describe(crops)
    assert rows.shape == (2, 16_896)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    slow = exact.rows(torch.from_numpy(crops)).numpy()
    assert np.linalg.norm(rows - slow, axis=1).max() < 1e-4, "the root widens what is near 0"


@pytest.mark.parametrize("seed", range(3))
def test_it_equals_a_loop_over_patches(seed: int) -> None:
    draw = np.random.default_rng(seed)
    d, k, stride = (int(draw.integers(low, high)) for low, high in ((1, 20), (2, 9), (11, 30)))
    vocabulary, crop = words(d, k, seed), faces(12, 1)[seed]
    sums = np.zeros((2, k, d + 2))
    places = [(y, x) for y in range(0, 147, stride) for x in range(0, 77, stride)]
    m, v = (a.astype(np.float64) for a in (vocabulary.means, vocabulary.variances))
    w = np.exp(vocabulary.log_weights.astype(np.float64))
    for y, x in places:
        projected = vocabulary.axes.astype(np.float64) @ (slow_root_sift(crop, y, x) - vocabulary.mean)
        z = np.append(projected, [(x + 12) / 100 - 0.5, (y + 12) / 170 - 0.5])
        densities = [
            w[s] * np.prod(np.exp(-((z - m[s]) ** 2) / (2 * v[s])) / np.sqrt(2 * np.pi * v[s])) for s in range(k)
        ]
        for s in range(k):
            q = densities[s] / sum(densities)
            sums[0, s] += q * (z - m[s]) / np.sqrt(v[s]) / np.sqrt(w[s])
            sums[1, s] += q * ((z - m[s]) ** 2 / v[s] - 1) / np.sqrt(2 * w[s])
    raw = (sums / len(places)).ravel()
    slow = np.sign(raw) * np.sqrt(np.abs(raw))
    exact = encoders(vocabulary, stride)[0]
    np.testing.assert_allclose(of(exact, crop)[1], raw, rtol=1e-6, atol=1e-8 * np.abs(raw).max())
    rows = exact.rows(torch.from_numpy(crop[None]))[0].numpy()
    np.testing.assert_allclose(rows, slow / np.linalg.norm(slow), atol=1e-5)


def test_it_is_the_gradient_of_the_likelihood_that_it_claims_to_be() -> None:
    """Autograd gives d ln p / d m scaled by (v / w)^0.5, d ln p / d deviation by (v / 2 w)^0.5 (Fisher information)."""
    vocabulary = words(4, 5, 1)
    exact = encoders(vocabulary, 5)[0]
    z, raw = of(exact, faces(12, 1)[0])
    m = exact.mixture.means.clone().requires_grad_()
    deviation = exact.mixture.variances.sqrt().requires_grad_()
    normal = torch.distributions.Normal(m, deviation)
    each = exact.mixture.log_weights + normal.log_prob(torch.from_numpy(z)[:, None]).sum(2)
    each.logsumexp(1).mean().backward()
    root = exact.mixture.log_weights.exp().sqrt()[:, None]
    assert m.grad is not None
    assert deviation.grad is not None
    by_mean, by_deviation = m.grad * deviation / root, deviation.grad * deviation / (root * 2**0.5)
    claimed = torch.cat([by_mean.flatten(), by_deviation.flatten()]).detach().numpy()
    np.testing.assert_allclose(raw, claimed, rtol=1e-9, atol=1e-12)


def test_whitening_the_axes_changes_nothing() -> None:
    """The deviations divide any scale of an axis out again, so whether the PCA whitens is no choice."""
    plain = words(6, 4, 2)
    scale = np.random.default_rng(2).uniform(0.2, 5, 6).astype(np.float32)
    both = np.append(scale, [1, 1]).astype(np.float32)
    axes, means, variances = plain.axes * scale[:, None], plain.means * both, plain.variances * both**2
    white = Vocabulary(axes, plain.mean, means, variances, plain.log_weights)
    crop = faces(12, 1)[3]
    raw, other = (of(encoders(v, 4)[0], crop)[1] for v in (plain, white))
    assert np.linalg.norm(raw - other) < 1e-5 * np.linalg.norm(raw)


@pytest.mark.parametrize("seed", range(3))
def test_brightness_and_contrast_change_nothing(made: Fisher, seed: int) -> None:
    draw = np.random.default_rng(seed)
    dark = faces(12, 1)[seed] // 8  # 0..31
    gain = int(draw.integers(2, 8))
    shift = int(draw.integers(0, 255 - 31 * gain + 1))
    bright = (dark.astype(int) * gain + shift).astype(np.uint8)
    one, other = made.describe(np.stack([dark, bright]))
    assert np.linalg.norm(one - other) < 2e-3, "half precision"


def test_the_faces_that_it_learned_from_lie_at_the_mean(made: Fisher) -> None:
    """At the most likely mixture the gradient over all patches is 0; of one face it is not."""
    encoder = encoders(made._words)[0]
    raw = np.stack([of(encoder, crop)[1] for crop in faces(12, 1)])
    assert np.linalg.norm(raw.mean(0)) < 0.3 * np.linalg.norm(raw, axis=1).mean()


def test_the_same_person_is_nearer(tmp_path: Path) -> None:
    options = Fisher.learn(faces(20, 1, 500), tmp_path, axes=24, components=16)
    rows = Fisher(**options, stride=2).describe(faces(12, 3))
    alike = rows @ rows.T
    np.fill_diagonal(alike, -1)
    owner = np.repeat(np.arange(12), 3)
    assert (owner[alike.argmax(1)] == owner).mean() > 0.3, "chance is 0.06"


def test_the_same_crops_give_the_same_vocabulary_and_others_a_different_one(tmp_path: Path) -> None:
    def learned(seed: int, crops: Crops) -> str:
        return Fisher.learn(crops, tmp_path, seed, axes=4, components=3, patches=50)["pin"]

    assert learned(0, faces(12, 1)) == learned(0, faces(12, 1))
    assert len({learned(0, faces(12, 1)), learned(1, faces(12, 1)), learned(0, faces(12, 1)[:11])}) == 3


def test_too_few_faces_are_refused_with_the_number_needed(tmp_path: Path) -> None:
    with pytest.raises(TooFewPairs, match="10 faces for a vocabulary needed, 9 found"):
        Fisher.learn(faces(12, 1)[:9], tmp_path)
    with pytest.raises(WrongShape, match="crops"):
        Fisher.learn(faces(12, 1)[:, 1:], tmp_path)


@pytest.mark.parametrize("stride", [0, -1, 78])
def test_a_stride_that_leaves_one_patch_or_none_is_refused(made: Fisher, stride: int) -> None:
    with pytest.raises(WrongShape, match="1 to 77"):
        Fisher(made.vocabulary, stride)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_reported(made: Fisher) -> None:
    with pytest.raises(Unavailable, match="no GPU"):
        Fisher(made.vocabulary, device="cuda").describe(faces(12, 1))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_gives_the_numbers_of_the_processor() -> None:
    vocabulary = words(64, 128, 3)
    rows = [Encoder(vocabulary, 1, device).describe(faces(12, 1)) for device in ("cpu", "cuda")]
    assert np.linalg.norm(rows[0] - rows[1], axis=1).max() < 1e-3


def test_without_a_vocabulary_only_its_width_is_known() -> None:
    unlearned = Fisher()
    assert (unlearned.is_ready, unlearned.dim, unlearned.version) == (False, 16_896, "")
    with pytest.raises(Unavailable, match=r"Fisher\.learn"):
        unlearned.describe(faces(12, 1))
    with pytest.raises(Corrupt, match="not the one"):
        Fisher(pin="0" * 64)


def test_a_vocabulary_is_found_checked_and_pinned(made: Fisher, tmp_path: Path) -> None:
    assert made.is_ready
    assert Fisher(made.vocabulary, pin=made.version).dim == made.dim == 2 * 12 * 6
    assert Path(made.vocabulary).stem == made.version
    with pytest.raises(Unavailable, match=r"nowhere\.safetensors"):
        Fisher(str(tmp_path / "nowhere.safetensors"))
    with pytest.raises(Corrupt, match="not the one"):
        Fisher(made.vocabulary, pin="0" * 64)


@pytest.mark.parametrize(
    ("name", "wrong", "reason"),
    [
        ("axes", np.zeros((10, 64), np.float32), "axes is not"),
        ("means", np.zeros((6, 11), np.float32), "means is not"),
        ("mean", np.full(128, np.nan, np.float32), "mean is not"),
        ("log_weights", np.zeros(6), "log_weights is not"),
        ("variances", np.zeros((6, 12), np.float32), "not above 0"),
        ("variances", None, "variances"),
    ],
)
def test_an_invalid_vocabulary_is_refused_with_the_reason(
    made: Fisher, name: str, wrong: Floats | None, reason: str, tmp_path: Path
) -> None:
    arrays = safetensors.numpy.load_file(made.vocabulary) | {name: wrong}
    path = tmp_path / "words.safetensors"
    safetensors.numpy.save_file({n: a for n, a in arrays.items() if a is not None}, path)
    with pytest.raises(Corrupt, match=reason):
        Fisher(str(path))


@pytest.mark.parametrize("cut", [0, 20, 3000])
def test_a_file_cut_short_is_corrupt(made: Fisher, cut: int, tmp_path: Path) -> None:
    path = tmp_path / "words.safetensors"
    path.write_bytes(Path(made.vocabulary).read_bytes()[:cut])
    with pytest.raises(Corrupt, match=r"words\.safetensors is not valid"):
        Fisher(str(path))
