import re

import pytest

from benchmarks import new_hubs


def test_the_middle_is_a_hub_and_ordinary_people_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    new_hubs.main(["--people", "200", "--seeds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "taken for hubs: 0.00 of 20 new people, 0.00 of 400 nameless faces"
    assert lines[1] == "the middle is taken for a hub in 100 % of 1 galleries"
    before, with_middle, again = map(float, re.findall(r"\d+\.\d+", lines[2]))
    assert max(before, again) < 2 < with_middle
