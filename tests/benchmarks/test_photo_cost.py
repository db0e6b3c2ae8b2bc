"""A search by photo is compared with its stages and with the least program."""

import asyncio
import re

import pytest

from benchmarks import photo_cost


def test_a_search_by_photo_is_compared_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(photo_cost.compare(photo_cost.parse_arguments(["--faces", "400", "--rounds", "2"])))
    lines = capsys.readouterr().out.splitlines()
    milliseconds = [float(re.search(r"(\d+\.\d\d) ms", line)[1]) for line in lines]  # type: ignore[index]
    assert len(lines) == 9
    assert milliseconds[6] == pytest.approx(sum(milliseconds[:6]), rel=0.5)
    assert all(re.search(r" ms   \d\.\d\d of the sum$", line) for line in lines[7:])
