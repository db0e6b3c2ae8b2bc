import re

import pytest

from benchmarks import refit_scale


def test_strangers_are_named_as_often_as_stated_by_the_threshold_of_the_fit_that_serves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refit_scale.main(["--methods", "cpmtml", "--seeds", "2"])
    first, _, serving, most = map(float, re.findall(r"\d+\.\d+", capsys.readouterr().out.splitlines()[1]))
    assert serving < first
    assert most < 2
