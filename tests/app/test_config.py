from pathlib import Path

import pytest
from pydantic import ValidationError

from app.config import Settings


def test_settings_are_read_from_variables_with_the_prefix() -> None:
    env = {"LIKENESS_HOME": "/tmp/x", "LIKENESS_WORKERS": "3", "PATH": "/bin", "LIKENESS_IMPORT_ROOTS": '["/srv/a"]'}
    settings = Settings.from_env(env)
    assert (settings.home, settings.workers, settings.import_roots) == (Path("/tmp/x"), 3, (Path("/srv/a"),))


def test_a_misspelt_variable_stops_the_start_with_its_name() -> None:
    with pytest.raises(ValidationError, match="worker_count"):
        Settings.from_env({"LIKENESS_WORKER_COUNT": "3"})


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("", "sqlite:///.likeness/likeness.sqlite"),
        ("postgresql://u:p@h/n", "postgresql+psycopg://u:p@h/n"),
        ("sqlite:////tmp/a", "sqlite:////tmp/a"),
    ],
)
def test_a_database_url_gets_the_installed_driver(given: str, used: str) -> None:
    assert Settings(database_url=given).database == used


def test_manifests_of_recognisers_are_named_in_one_setting() -> None:
    env = {"LIKENESS_DESCRIPTOR_MANIFESTS": '{"theirs": "/m/a.json"}', "LIKENESS_DEFAULT_RECOGNISER": "theirs"}
    assert Settings.from_env(env).descriptor_manifests == {"theirs": Path("/m/a.json")}
    with pytest.raises(ValidationError, match="there are: auto, lbp, dlib_resnet, theirs"):
        Settings.from_env(env | {"LIKENESS_DEFAULT_RECOGNISER": "ours"})


@pytest.mark.parametrize("old", ["LIKENESS_ONNX_MANIFESTS", "LIKENESS_CNN_MANIFESTS"])
def test_a_setting_that_was_replaced_stops_the_start_and_names_its_successor(old: str) -> None:
    with pytest.raises(ValidationError, match=f"{old} is now LIKENESS_DESCRIPTOR_MANIFESTS"):
        Settings.from_env({old: '{"theirs": "/m/a.json"}'})
