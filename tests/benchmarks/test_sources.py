"""The benchmarks of source compensation, on random people."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.degraded_pool import DegradedPool
from benchmarks.source_conditions import Conditions, draw_split, film_from_afar
from benchmarks.source_fits import LABELS
from benchmarks.source_populations import divide_people, measure
from benchmarks.sources import Options, measure_split, summarise
from ml.compensation import degrade_crops
from ml.compensation.degradations import DEGRADATIONS
from ml.compensation.simulation import MIN_EXPLAINED_SHARE
from ml.registry import build
from ml.types import Crops, Ids, Rows

PEOPLE, PHOTOS, DIM = 240, 4, 32
LIKE_THE_SOURCE, UNLIKE = "15 pixels", "24 pixels"


def draw_people(seed: int = 0) -> tuple[Rows, Ids]:
    """Four photos of each person, of unit length."""
    rng = np.random.default_rng(seed)
    people = np.repeat(np.arange(PEOPLE), PHOTOS)
    rows = rng.normal(size=(PEOPLE, DIM))[people] + rng.normal(0, 0.9, (len(people), DIM))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32), people


def degrade(rows: Rows, shift: float, seed: int) -> Rows:
    moved = rows + 0.1 * np.random.default_rng(seed).normal(size=rows.shape) + shift
    return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True), np.float32)


def make_conditions() -> Conditions:
    """Degraded photos lie apart from clean ones, in one direction and less alike."""
    rows, people = draw_people()
    return Conditions(people, rows, np.arange(len(rows)), degrade(rows, 0.3, 1))


def make_pool(folder: Path) -> DegradedPool:
    """A pool of three photos of each person: one degradation moves them as the source does, the others elsewhere."""
    rows, _ = draw_people()
    photos = np.flatnonzero(np.arange(len(rows)) % PHOTOS)
    for name in DEGRADATIONS:
        file = folder / f"pool-{name.replace(' ', '-')}.npy"
        np.save(file, degrade(rows[photos], 0.3 if name == LIKE_THE_SOURCE else -0.3, 2))
    crops = np.zeros((len(rows), 170, 100), np.uint8)
    return DegradedPool(photos, crops, build("descriptors", "lbp"), folder, "pool")


def test_a_split_searches_for_people_it_does_not_learn_from() -> None:
    conditions = make_conditions()
    split = draw_split(conditions, 2, 0)
    learned = set(conditions.people[split.learned_clean]) | set(conditions.people[split.learned_degraded])
    assert not learned & set(conditions.people[np.concatenate([split.queries, split.gallery])])
    assert not set(split.queries) & set(split.gallery)
    assert len(split.queries) == PEOPLE // 2


def test_compensation_gains_where_photos_differ(tmp_path: Path) -> None:
    options, pool = Options(has_few_faces=True, degradations=(LIKE_THE_SOURCE, UNLIKE)), make_pool(tmp_path)
    row = summarise([measure_split(make_conditions(), 2, seed, pool, options) for seed in range(2)])
    assert row["sources"] > row["cosine"] + 2
    assert row["sources, gain"][1] > 0
    assert row["on, people named"] == row["on, nobody named"] == row["on, nobody named, simulated"] == 2
    assert set(row) >= {"sources, 5 faces", "simulated, 5 faces", f'sources, {LABELS} "same"', "served, people named"}
    assert row[f"as {LIKE_THE_SOURCE}"] == row["simulated"] != row[f"as {UNLIKE}"]
    assert row["sources, mixed"] > row["cosine, mixed"]
    mixed = [row[f"{way}, mixed, clean query"] for way in ("cosine", "simulated")]
    assert row["simulated, mixed, clean query, gain"][0] == pytest.approx(mixed[1] - mixed[0])
    assert row["simulated over sources, gain"][0] == pytest.approx(row["simulated"] - row["sources"])


def test_clean_photos_are_served_without_correction(tmp_path: Path) -> None:
    rows, people = draw_people()
    clean = Conditions(people, rows, np.arange(len(rows)), rows)
    row = summarise([measure_split(clean, 2, 0, make_pool(tmp_path), Options())])
    assert row["on, people named"] == row["on, nobody named"] == 0
    assert row["served, people named"] == row["served, nobody named"] == row["cosine"]


def test_a_pool_describes_each_photo_once(tmp_path: Path) -> None:
    crops: Crops = np.random.default_rng(0).integers(0, 256, (6, 170, 100), dtype=np.uint8)
    lbp, photos = build("descriptors", "lbp"), np.array([1, 2, 5])
    pool = DegradedPool(photos, crops, lbp, tmp_path, "pool")
    expected = lbp.describe(degrade_crops(crops[photos], "15 pixels"))
    assert np.array_equal(pool.describe("15 pixels", photos[:2]), expected[:2])
    assert np.array_equal(pool.describe("15 pixels", photos), expected)
    blank = DegradedPool(photos, np.zeros_like(crops), lbp, tmp_path, "pool")
    assert np.array_equal(blank.describe_rows(photos)("15 pixels", np.array([2, 0])), expected[[2, 0]])


def test_a_face_from_afar_keeps_its_size_and_loses_detail() -> None:
    crops: Crops = np.random.default_rng(0).integers(0, 256, (2, 112, 112, 3), dtype=np.uint8)
    filmed = film_from_afar(crops)
    assert filmed.shape == crops.shape
    assert filmed.std() < 0.5 * crops.std()
    assert np.array_equal(filmed, film_from_afar(crops))


def test_people_divided_by_a_component_differ_more_than_at_random(tmp_path: Path) -> None:
    rows, people = draw_people()
    pool = make_pool(tmp_path)
    figures = [measure(rows, people, 2, component, pool) for component in (0, 1)]
    assert figures[0][0] < figures[1][0] < 0.3
    assert all(explained < MIN_EXPLAINED_SHARE for *_, explained in figures)
    sides = divide_people(rows, people, 1, np.random.default_rng(0))
    assert sides.sum() == PEOPLE // 2
