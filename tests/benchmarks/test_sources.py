"""The benchmarks of source compensation, on random people."""

import numpy as np

from benchmarks.source_populations import divide_people, measure
from benchmarks.sources import LABELS, Conditions, draw_split, measure_split, summarise
from ml.types import Ids, Rows

PEOPLE, PHOTOS, DIM = 120, 4, 32


def draw_people(seed: int = 0) -> tuple[Rows, Ids]:
    """Four photos of each person, of unit length."""
    rng = np.random.default_rng(seed)
    people = np.repeat(np.arange(PEOPLE), PHOTOS)
    rows = rng.normal(size=(PEOPLE, DIM))[people] + rng.normal(0, 0.9, (len(people), DIM))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32), people


def make_conditions() -> Conditions:
    """Degraded photos lie apart from clean ones, in one direction and less alike."""
    rows, people = draw_people()
    degraded = rows + 0.1 * np.random.default_rng(1).normal(size=rows.shape) + 0.3
    degraded /= np.linalg.norm(degraded, axis=1, keepdims=True)
    return Conditions(people, rows, np.arange(len(rows)), degraded.astype(np.float32))


def test_a_split_searches_for_people_it_does_not_learn_from() -> None:
    conditions = make_conditions()
    split = draw_split(conditions, 2, 0)
    learned = set(conditions.people[split.learned_clean]) | set(conditions.people[split.learned_degraded])
    assert not learned & set(conditions.people[np.concatenate([split.queries, split.gallery])])
    assert not set(split.queries) & set(split.gallery)
    assert len(split.queries) == PEOPLE // 2


def test_compensation_gains_where_photos_differ() -> None:
    row = summarise([measure_split(make_conditions(), 2, seed) for seed in range(2)])
    assert row["sources"] > row["cosine"] + 2
    assert row["sources, gain"][1] > 0
    assert row["on by shift"] == row["judged on"] == 2
    assert set(row) >= {"5 faces", f'{LABELS} "same"'}


def test_people_divided_by_a_component_differ_more_than_at_random() -> None:
    rows, people = draw_people()
    at_random, by_component = (measure(rows, people, 2, component)[0] for component in (0, 1))
    assert at_random < by_component < 0.3
    sides = divide_people(rows, people, 1, np.random.default_rng(0))
    assert sides.sum() == PEOPLE // 2
