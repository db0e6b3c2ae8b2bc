"""The comparison of rules for choosing what to label, on drawn people."""

import numpy as np
import pytest

from benchmarks import question_rules
from benchmarks.question_kinds import count_questions
from benchmarks.question_rules import BALANCED, RULES, QuestionTrial, measure
from benchmarks.question_stopping import judge_run
from ml.evaluation.protocols import held_out_people


@pytest.fixture
def trial() -> QuestionTrial:
    rng = np.random.default_rng(0)
    people = np.repeat(np.arange(80), 4)
    rows = rng.normal(size=(80, 12))[people] + 0.6 * rng.normal(size=(320, 12))
    return QuestionTrial(held_out_people(people, 0.5), rows.astype(np.float32))


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_labels_as_many_pairs_as_the_sizes_say(
    rule: str, trial: QuestionTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(question_rules, "DIM", 6)
    run = dict(measure(trial, rule, [40, 80], seed=0))
    assert list(run) == ["0", "40", "80"]
    assert [run[size]["labels"] for size in ("40", "80")] == [40, 80]
    assert 0 < run["80"]["same"] < 80
    assert all(len(run[size]["ap"]) == len(trial.protocol.queries) for size in run)
    if rule == BALANCED:
        assert run["80"]["same"] == 40


def test_a_step_is_judged_by_people_who_did_not_measure_it() -> None:
    people = list(range(40))
    run = {str(size): {"ap": [0.1 + size / 1000] * 40, "people": people} for size in (0, 50, 100, 400)}
    [judged] = judge_run(run, seed=0)
    assert judged.at_most == pytest.approx(5.0)
    assert judged.gained == pytest.approx(5.0)
    assert 0 < judged.expected < 5
    assert not judged.enough


def test_questions_are_counted_until_both_kinds_have_come() -> None:
    same = np.array([True, True, False, True, False])
    assert [count_questions(same, wanted) for wanted in (1, 2, 3)] == [3, 5, None]
