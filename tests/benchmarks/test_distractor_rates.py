"""Galleries beside distractors of another kind, as a benchmark draws and judges them."""

import numpy as np
import pytest

from benchmarks import distractor_rates
from benchmarks.distractor_rates import COLUMNS, NoisyGallery, draw_people, judge


def test_a_gallery_has_people_distractors_with_noise_and_other_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distractor_rates, "DISTRACTORS", 20)
    monkeypatch.setattr(distractor_rates, "STRANGERS", 30)
    rows, subjects = draw_people(60, 0)
    gallery = NoisyGallery.draw(rows, subjects, 10, 0.5, 0)
    enrolled = gallery.index.rows(gallery.index.ids())
    assert (len(enrolled), gallery.people.is_named.sum(), gallery.people.is_distractor.sum()) == (40, 10, 20)
    original = np.isclose(enrolled[:, None], rows[None], atol=1e-6).all(2).any(1)
    assert original.tolist() == [True] * 20 + [False] * 20, "distractors alone have noise"
    others = np.concatenate([gallery.strangers, gallery.probes])
    assert np.linalg.norm(others[:, None] - enrolled[None], axis=2).min() > 0
    distances, nearest = gallery.search(enrolled[:20])
    assert nearest.tolist() == np.arange(10).repeat(2).tolist()
    assert np.isfinite(distances).all()


@pytest.mark.parametrize("people", [12, 30])
def test_no_more_strangers_are_named_than_stated_beside_distractors_of_a_poorer_camera(people: int) -> None:
    """By distractors alone, 9 of 9 such galleries of 12 people were above what they stated at 5 %, and 6 of 8 of 30
    people at 1 %."""
    found = list[float]()
    for seed in range(2):
        gallery = NoisyGallery.draw(*draw_people(people + 2500, seed), people, 1.2, seed)
        for fpir in (0.01, 0.05):
            outcome = judge(gallery, fpir)
            assert outcome is not None
            assert not outcome.is_above
            assert outcome.strangers < 3 * fpir
            found.append(outcome.found)
    assert np.mean(found) > 0.1


def test_it_prints_a_row_for_each_rate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distractor_rates, "DISTRACTORS", 20)
    monkeypatch.setattr(distractor_rates, "STRANGERS", 50)
    distractor_rates.main(["--people", "10", "--noise", "0", "1", "--galleries", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 2 * len(distractor_rates.FPIRS)
    assert all(line.count("|") == len(COLUMNS) + 1 for line in lines)
    assert lines[1].startswith("| 10 | 0 | 0.01 | 1 | 0 |"), "too few searches: it would come from pairs"
