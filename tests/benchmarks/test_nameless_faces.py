"""Strangers and second photos are judged against faces without a name, by two rules."""

import re

import numpy as np
import pytest

from benchmarks import nameless_faces
from benchmarks.nameless_faces import PHOTOS, draw_faces, draw_trial


def test_nobody_is_enrolled_and_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nameless_faces, "STRANGERS", 30)
    rows, people = draw_faces(100, 0)
    trial = draw_trial(rows, people, 20, 50, 0)
    whose = {row.tobytes(): person for row, person in zip(rows, people.tolist(), strict=True)}
    named, nameless, strangers, second = (
        [whose[row.tobytes()] for row in chosen]
        for chosen in (trial.rows[trial.subjects >= 0], trial.rows[trial.subjects < 0], trial.strangers, trial.second)
    )
    assert named == trial.subjects[trial.subjects >= 0].tolist()
    assert (len(set(named)), len(named)) == (20, 20 * PHOTOS)
    assert len(set(named) | set(nameless) | set(strangers)) == 20 + 50 + 30, "no two of them share a person"
    assert nameless == second
    assert not {row.tobytes() for row in trial.second} & {row.tobytes() for row in trial.rows}


def test_the_shares_are_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nameless_faces, "STRANGERS", 200)
    nameless_faces.main(["--people", "200", "--nameless", "300", "--seeds", "1"])
    [line] = capsys.readouterr().out.splitlines()[1:]
    numbers = [float(text) for text in re.findall(r"\d+\.\d+", line)]
    assert len(numbers) == 5
    assert np.less_equal(numbers[:3], 3).all()
    assert min(numbers[3:]) > 50
