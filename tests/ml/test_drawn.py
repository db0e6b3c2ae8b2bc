"""Drawn people: the same each time, unlike one another, found by the detector, hard enough that learning helps."""

from time import perf_counter

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from ml.aligners.similarity import Similarity
from ml.descriptors.lbp import Lbp
from ml.detectors.hog import Hog
from ml.synthetic_faces import draw, person, photograph
from ml.types import Rows


def described(people: range, shots: int) -> tuple[Rows, np.ndarray]:
    crops = [Similarity().crops(*photograph(person(p), s))["grey"] for p in people for s in range(shots)]
    return Lbp().describe(np.stack(crops)), np.repeat(list(people), shots)


def nearest_is_right(rows: Rows, who: np.ndarray) -> float:
    """Return how often the nearest other photo shows the same person."""
    norms = (rows**2).sum(1)
    distances = norms[:, None] + norms - 2 * rows @ rows.T
    np.fill_diagonal(distances, np.inf)
    return float((who[distances.argmin(1)] == who).mean())


def test_a_photo_is_the_same_each_time() -> None:
    first, again = draw(person(5), 2), draw(person(5), 2)
    assert first.shape == (250, 250, 3)
    assert first.dtype == np.uint8
    assert (first == again).all()


def test_people_and_shots_differ() -> None:
    assert len({person(seed) for seed in range(100)}) == 100
    assert not (draw(person(1), 0) == draw(person(1), 1)).all()
    assert not (draw(person(1), 0) == draw(person(2), 0)).all()


@pytest.mark.parametrize("size", [64, 128, 400])
def test_any_size_can_be_drawn_with_the_same_points(size: int) -> None:
    photo, points = photograph(person(0), 0, size)
    assert photo.shape == (size, size, 3)
    _, other = photograph(person(0), 0, 250)
    assert np.allclose((points + 0.5) / size, (other + 0.5) / 250, atol=0.01)


def test_the_detector_finds_synthetic_faces() -> None:
    hog = Hog()
    detected = [len(hog.detect(draw(person(p), p))) == 1 for p in range(60)]
    assert np.mean(detected) > 0.9


def test_a_smile_and_the_years_change_what_is_drawn_and_the_smile_moves_the_mouth() -> None:
    plain, still = photograph(person(3), 0, smile=0.0, age=20.0)
    smiling, moved = photograph(person(3), 0, smile=1.0, age=20.0)
    old = draw(person(3), 0, smile=0.0, age=75.0)
    assert np.abs(plain.astype(int) - smiling).mean() > 0.2
    assert np.abs(plain.astype(int) - old).mean() > 0.5
    assert moved[3, 1] < still[3, 1]
    assert moved[3, 0] < still[3, 0]


def test_plain_distances_are_poor_and_learning_from_other_people_helps() -> None:
    rows, who = described(range(80), 5)
    known, queries = slice(0, 250), slice(250, 400)
    plain = nearest_is_right(rows[queries], who[queries])
    fewer = PCA(120, random_state=0).fit(rows[known])
    learned = LinearDiscriminantAnalysis().fit(fewer.transform(rows[known]), who[known])
    better = nearest_is_right(learned.transform(fewer.transform(rows[queries])), who[queries])
    assert plain < 0.6
    assert better > plain + 0.25


def test_a_face_is_drawn_in_a_few_milliseconds() -> None:
    draw(person(0), 0)
    times = []
    for seed in range(30):
        begun = perf_counter()
        draw(person(seed), seed)
        times.append(perf_counter() - begun)
    assert min(times) < 0.05
