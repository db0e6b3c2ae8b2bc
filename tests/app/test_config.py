from pathlib import Path

import pytest
from pydantic import ValidationError

from app.config import Settings


def test_settings_come_from_the_variables_with_our_prefix() -> None:
    env = {"LIKENESS_HOME": "/tmp/x", "LIKENESS_WORKERS": "3", "PATH": "/bin", "LIKENESS_IMPORT_ROOTS": '["/srv/a"]'}
    settings = Settings.from_env(env)
    assert (settings.home, settings.workers, settings.import_roots) == (Path("/tmp/x"), 3, (Path("/srv/a"),))


def test_a_misspelt_variable_stops_the_start_and_is_named() -> None:
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
def test_the_database_has_the_driver_that_we_use(given: str, used: str) -> None:
    assert Settings(database_url=given).database == used


def test_a_descriptor_of_the_operators_is_an_onnx_model_or_a_cnn() -> None:
    env = {"LIKENESS_ONNX_MANIFESTS": '{"theirs": "/m/a.json"}', "LIKENESS_CNN_MANIFESTS": '{"ours": "/m/b.json"}'}
    named = Settings.from_env(env).recognisers
    assert named == {"theirs": ("onnx", Path("/m/a.json")), "ours": ("cnn", Path("/m/b.json"))}
    with pytest.raises(ValidationError, match="ours cannot be both"):
        Settings.from_env(env | {"LIKENESS_ONNX_MANIFESTS": '{"ours": "/m/a.json"}'})
