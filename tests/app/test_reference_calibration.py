"""The script that measures the reference calibration of a recogniser."""

import numpy as np

from benchmarks.reference_calibration import impostor_distances, measure
from ml.calibration import Calibration
from tests.rows import people


def gallery() -> tuple[np.ndarray, np.ndarray]:
    rows, names = people(60, 3, dim=16)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), np.unique(names, return_inverse=True)[1]


def test_every_pair_of_different_people_counts_once() -> None:
    rows, who = gallery()
    first, second = np.triu_indices(len(rows), 1)
    different = who[first] != who[second]
    by_hand = ((rows[first[different]] - rows[second[different]]) ** 2).sum(1)
    distances = impostor_distances(rows, who)
    np.testing.assert_allclose(np.sort(distances), np.sort(by_hand), atol=1e-5)


def test_the_calibration_separates_people_and_states_its_precision() -> None:
    calibration = measure(*gallery())
    assert calibration.impostors.n == 60 * 59 // 2 * 9
    threshold = calibration.threshold(0.05)
    assert 0 < threshold.low < 0.05 < threshold.high < 1
    assert calibration.probability(np.array([0.0]))[0] > 0.9 > 0.1 > calibration.probability(np.array([2.0]))[0]
    assert Calibration.from_dict(calibration.to_dict()) == calibration


def test_few_people_count_for_less_than_their_number_of_pairs() -> None:
    calibration = measure(*gallery())
    assert min(calibration.impostors.effective) < calibration.impostors.n / 5
