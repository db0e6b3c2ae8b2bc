"""docs/operate/monitoring.md lists the metrics that the service exposes."""

import re
from pathlib import Path

import pytest

from tests.service import Service

PAGE = Path(__file__).resolve().parents[2] / "docs/operate/monitoring.md"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_page_lists_every_metric_and_no_other(service: Service) -> None:
    service.client.get("/livez")
    exposed = dict(re.findall(r"^# TYPE (\w+) (\w+)$", service.client.get("/metrics").text, re.MULTILINE))
    listed = dict(re.findall(r"^\| `(likeness_\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE))
    own = {name: kind for name, kind in exposed.items() if not name.endswith("_created")}
    assert listed == own
