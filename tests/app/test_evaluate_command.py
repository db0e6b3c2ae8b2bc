"""`likeness evaluate` measures the recognisers that are available."""

import json
from pathlib import Path

import pytest
import typer

from app.cli.datasets.evaluate import choose_methods, make_settings, name_manifests
from app.cli.datasets.evaluate_openset import choose_rows


def test_each_manifest_is_a_recogniser_named_after_its_file_and_a_row(tmp_path: Path) -> None:
    manifests = name_manifests([tmp_path / "first.json", tmp_path / "second.json"])
    named = json.loads(make_settings(manifests)["descriptor_manifests"])
    assert named == {"first": str(tmp_path / "first.json"), "second": str(tmp_path / "second.json")}
    assert choose_methods(list(manifests), ["second"]) == {
        "second, cosine": {"method": "cosine", "descriptor": "second"}
    }
    rows = choose_rows(["lbp"], list(manifests), tmp_path)
    assert [(row.name, row.descriptor["name"]) for row in rows] == [
        ("lbp", "lbp"),
        ("first, cosine", "first"),
        ("second, cosine", "second"),
    ]


@pytest.mark.parametrize("names", [["lbp.json"], ["a/net.json", "b/net.json"]])
def test_a_manifest_whose_name_is_taken_is_refused(names: list[str]) -> None:
    with pytest.raises(typer.BadParameter, match=r"rename the files: (lbp|net) is taken"):
        name_manifests([Path(name) for name in names])
