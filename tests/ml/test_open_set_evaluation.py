"""Open sets decided by person distances: FNIR at FPIR, and the rates at the gallery's own threshold."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ml.distances import EUCLIDEAN
from ml.errors import WrongShape
from ml.evaluation.open_set import OpenSetOutcomes, search_open_set, summarise_open_set
from ml.evaluation.protocols import Protocol, open_set_people
from ml.types import Ids, Rows

PEOPLE, SHOTS, DIM = 700, 3, 16


def draw_people(spread: float, seed: int = 0, people: int = PEOPLE) -> tuple[Rows, Ids]:
    """People as points on a sphere, their photos `spread` apart."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(people, DIM))
    rows = np.repeat(centres, SHOTS, axis=0) + spread * rng.normal(size=(people * SHOTS, DIM))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit.astype(np.float32), np.repeat(np.arange(people), SHOTS)


def searched(spread: float, seed: int = 0, people: int = PEOPLE) -> OpenSetOutcomes:
    rows, numbers = draw_people(spread, seed, people)
    return search_open_set(rows, open_set_people(numbers, 0.9, seed=seed), EUCLIDEAN)


def test_people_who_lie_far_apart_are_all_found_and_no_stranger_is_named() -> None:
    outcomes = searched(spread=0.02)
    assert outcomes.is_right[~outcomes.is_stranger].all()
    assert not outcomes.is_right[outcomes.is_stranger].any()
    report = summarise_open_set([outcomes])
    assert report is not None
    assert report["fnir"]["0.01"]["value"] == 0
    assert 0 < report["fnir"]["0.01"]["high"] < 0.05


def test_misses_and_strangers_named_at_the_own_threshold_are_those_counted_by_hand() -> None:
    outcomes = searched(spread=0.35)
    assert outcomes.calibration is not None
    threshold = outcomes.calibration.threshold(0.1, outcomes.gallery_faces)
    assert threshold is not None
    assert threshold.enough
    report = summarise_open_set([outcomes])
    assert report is not None
    within, known = outcomes.distances <= threshold.person_distance, ~outcomes.is_stranger
    decided = report["decided"]["0.1"]
    assert decided["fpir"]["value"] == pytest.approx(within[~known].mean())
    assert decided["fnir"]["value"] == pytest.approx(1 - (within & outcomes.is_right)[known].mean())
    assert 0.02 < decided["fpir"]["value"] < 0.25, "the strangers are named at about the rate asked for"
    assert decided["fnir"]["low"] <= decided["fnir"]["value"] <= decided["fnir"]["high"]
    assert json.loads(json.dumps(report)) == report


def test_fewer_are_missed_where_more_strangers_may_be_named() -> None:
    report = summarise_open_set([searched(0.4, seed) for seed in (0, 1)])
    assert report is not None
    assert report["fnir"]["0.1"]["value"] < report["fnir"]["0.01"]["value"]


def test_a_probe_whose_neighbour_is_somebody_else_is_missed_at_any_threshold() -> None:
    outcomes = searched(0.02)
    wrong = replace(outcomes, is_right=np.zeros_like(outcomes.is_right))
    report = summarise_open_set([wrong])
    assert report is not None
    assert report["fnir"]["0.1"]["value"] == 1


def test_too_few_people_to_have_a_threshold_of_their_own() -> None:
    report = summarise_open_set([searched(0.3, people=40)])
    assert report is not None
    assert report["decided"]["0.01"] is None
    assert 0 <= report["fnir"]["0.01"]["value"] <= 1


def test_without_strangers_there_is_no_report() -> None:
    outcomes = searched(0.1, people=40)
    closed = replace(outcomes, is_stranger=np.zeros_like(outcomes.is_stranger))
    assert summarise_open_set([closed]) is None


def test_an_empty_gallery_is_refused() -> None:
    rows, people = draw_people(0.1, people=4)
    nobody = np.empty(0, np.int64)
    with pytest.raises(WrongShape, match="gallery"):
        search_open_set(rows, Protocol("none", people, nobody, np.arange(4), nobody), EUCLIDEAN)


def test_searches_of_people_without_a_number_are_left_out() -> None:
    rows, people = draw_people(0.1, people=30)
    protocol = open_set_people(people, 0.9)
    unknown = people.copy()
    unknown[protocol.queries[0]] = -1
    outcomes = search_open_set(rows, replace(protocol, people=unknown), EUCLIDEAN)
    assert len(outcomes.distances) == len(protocol.queries) - 1
