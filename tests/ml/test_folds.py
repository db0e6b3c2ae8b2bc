import numpy as np
import pytest

from ml.errors import WrongShape
from ml.evaluation.folds import PairDistances, threshold_fold, verify
from ml.evaluation.verification import best_threshold
from ml.evaluation.verification_pairs import VerificationPairs

FOLDS, EACH = 10, 20


def world(seed: int, person_spread: float = 2.0) -> tuple[list[VerificationPairs], np.ndarray, np.ndarray]:
    """Ten folds of people of their own, four photos each on a line; the places of all photos."""
    draw = np.random.default_rng(seed)
    people = np.repeat(np.arange(FOLDS * EACH), 4)
    rows = person_spread * draw.normal(size=FOLDS * EACH)[people] + draw.normal(size=len(people))
    folds = []
    for fold in range(FOLDS):
        first = 4 * EACH * fold
        same = [(first + 4 * p + i, first + 4 * p + i + 1) for p in range(EACH) for i in range(3)]
        one, other = draw.integers(0, 4 * EACH, (2, 400))
        differ = [(first + a, first + b) for a, b in zip(one, other, strict=True) if a // 4 != b // 4][: len(same)]
        folds.append(VerificationPairs(np.array(same + differ), np.repeat([True, False], [len(same), len(differ)])))
    return folds, people, rows


def on_the_line(rows: np.ndarray) -> PairDistances:
    return lambda index: np.abs(rows[index[:, 0]] - rows[index[:, 1]])


def test_every_fold_is_judged_at_the_threshold_of_the_others() -> None:
    folds, people, rows = world(0)
    pair_distances = on_the_line(rows)
    result = verify(folds, people, lambda _: pair_distances)
    for f in range(FOLDS):
        others = VerificationPairs.of(folds[:f] + folds[f + 1 :])
        threshold = best_threshold(pair_distances(others.index), others.same)
        assert result.thresholds[f] == threshold
        assert result.accuracies[f] == np.mean((pair_distances(folds[f].index) <= threshold) == folds[f].same)
    assert result.accuracy.mean == pytest.approx(np.mean(result.accuracies))
    assert result.accuracy.se == pytest.approx(np.std(result.accuracies, ddof=1) / 10**0.5)
    assert result.people.value == result.student.value == pytest.approx(result.accuracy.mean)
    assert result.people.low < result.accuracy.mean < result.people.high


def test_wrong_labels_in_a_fold_do_not_move_its_own_threshold() -> None:
    """Its labels turned round: the other folds' thresholds may move, its own and its distances do not."""
    folds, people, rows = world(1)
    clean = verify(folds, people, lambda _: on_the_line(rows))
    poisoned = [*folds]
    poisoned[3] = VerificationPairs(folds[3].index, ~folds[3].same)
    result = verify(poisoned, people, lambda _: on_the_line(rows))
    assert result.thresholds[3] == clean.thresholds[3]
    assert result.accuracies[3] == pytest.approx(1 - clean.accuracies[3])


def test_shuffled_labels_give_chance() -> None:
    folds, people, rows = world(2)
    draw = np.random.default_rng(2)
    shuffled = [VerificationPairs(f.index, draw.permutation(f.same)) for f in folds]
    result = verify(shuffled, people, lambda _: on_the_line(rows))
    assert result.accuracy.mean == pytest.approx(0.5, abs=0.06)
    assert result.separation.auc.low < 0.5 < result.separation.auc.high


def test_models_of_different_scales_may_judge_the_folds() -> None:
    folds, people, rows = world(3)
    plain = verify(folds, people, lambda _: on_the_line(rows))
    scaled = verify(folds, people, lambda f: on_the_line((f + 1) * rows))
    assert scaled.accuracies == plain.accuracies
    assert scaled.separation.auc.value == pytest.approx(plain.separation.auc.value)
    assert scaled.thresholds[9] == pytest.approx(10 * plain.thresholds[9])


def test_the_interval_over_people_covers() -> None:
    big, covered, worlds = [], 0, 100
    for seed in range(worlds):
        folds, people, rows = world(100 + seed)
        result = verify(folds, people, lambda _, rows=rows: on_the_line(rows), resamples=200)  # type: ignore[misc]
        big.append(result.people)
    truth = np.mean([one.value for one in big])
    covered = sum(one.low <= truth <= one.high for one in big)
    assert 0.88 <= covered / worlds <= 1.0


def test_one_fold_or_one_kind_of_pair_is_not_enough() -> None:
    folds, people, rows = world(4)
    for few in (folds[:1], [folds[0], VerificationPairs(folds[1].index[:3], folds[1].same[:3])]):
        with pytest.raises(WrongShape, match="pairs of both kinds"):
            verify(few, people, lambda _: on_the_line(rows))


def test_a_threshold_from_pairs_that_were_not_learned_from_is_not_too_strict() -> None:
    """A model that knows the others' people by heart puts them close; of new people it knows what it knew before."""
    folds, people, rows = world(5)

    def pair_distances(fold: int) -> PairDistances:
        fold_faces = np.unique(folds[fold].index)
        heart = np.where(np.isin(np.arange(len(rows)), fold_faces), rows, 0.02 * rows)
        return on_the_line(heart)

    def judge(fold: int) -> tuple[VerificationPairs, np.ndarray]:
        other_fold = folds[fold ^ 1]
        return other_fold, on_the_line(rows)(other_fold.index)

    tight, unseen = verify(folds, people, pair_distances), verify(folds, people, pair_distances, judge=judge)
    assert unseen.accuracy.mean > tight.accuracy.mean + 0.05
    for f in range(FOLDS):
        pairs, distances = judge(f)
        assert unseen.thresholds[f] == best_threshold(distances, pairs.same)
    assert unseen.separation.auc.value == tight.separation.auc.value


def test_two_neighbours_are_partners_and_an_odd_last_fold_has_the_one_before() -> None:
    assert [threshold_fold(f, 4) for f in range(4)] == [1, 0, 3, 2]
    assert [threshold_fold(f, 5) for f in range(5)] == [1, 0, 3, 2, 3]
