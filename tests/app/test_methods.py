"""The catalogue of methods and descriptors over HTTP."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.config import Settings
from app.console.routes import STATIC
from app.methods.schemas import MethodOut
from ml import registry
from ml.descriptors import dlib_resnet
from ml.descriptors.common.crop_descriptors import list_crop_descriptors
from ml.descriptors.common.file_backed import manifest_types
from tests.ml.tiny_onnx import tiny_onnx
from tests.service import Service, run_service

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def listed(service: Service) -> dict[str, Any]:
    answer = service.client.get("/v1/methods", headers=service.key("reader"))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def by_name(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in entries}


def test_every_method_and_every_descriptor_without_a_file_is_listed(service: Service) -> None:
    catalogue = listed(service)
    assert [method["name"] for method in catalogue["methods"]] == list(registry.names("embedders"))
    assert catalogue["default_method"] in registry.names("embedders")
    descriptors = set(list_crop_descriptors()) - manifest_types().keys()
    assert [descriptor["name"] for descriptor in catalogue["descriptors"]] == sorted(descriptors)
    assert by_name(catalogue["descriptors"])["lbp"]["dim"] == 9860
    learns = {method["name"] for method in catalogue["methods"] if method["learns"]}
    assert learns == set(registry.names("embedders")) - {"l2", "cosine"}


def test_methods_are_described_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    first = listed(service)
    monkeypatch.setattr(MethodOut, "of", None)
    assert listed(service) == first


def test_an_option_has_a_type_a_range_choices_a_unit_and_help(service: Service) -> None:
    methods = by_name(listed(service)["methods"])
    options = by_name(methods["clml"]["options"])
    assert options["dim"] == {
        "name": "dim", "type": "integer", "items": None, "default": 128, "minimum": 1, "maximum": None,
        "choices": [], "unit": "numbers", "help": "numbers of an embedding", "group": "",
    }  # fmt: skip
    assert (options["held_out"]["type"], options["held_out"]["minimum"], options["held_out"]["maximum"]) == (
        "number",
        0,
        1,
    )
    assert (options["unit"]["type"], options["unit"]["default"]) == ("boolean", True)
    assert (options["start"]["type"], options["start"]["default"], options["start"]["group"]) == (
        "string",
        "lda",
        "map",
    )
    assert options["start"]["choices"] == ["lda", "wpca", "pca", "random", "learned"]
    assert (options["ks"]["type"], options["ks"]["items"], options["ks"]["default"]) == ("array", "integer", [])
    patterns = by_name(by_name(listed(service)["descriptors"])["lbp"]["options"])["patterns"]
    assert (patterns["type"], patterns["choices"]) == ("integer", [58, 59])


def test_no_option_that_names_a_device_or_a_file_is_listed(service: Service) -> None:
    catalogue = listed(service)
    names = {o["name"] for entry in catalogue["methods"] + catalogue["descriptors"] for o in entry["options"]}
    assert not names & {"device", "threads", "manifest", "vocabulary", "weights", "pin"}
    assert all(o["help"] for entry in catalogue["methods"] + catalogue["descriptors"] for o in entry["options"])


@pytest.mark.parametrize("kind", ["methods", "descriptors"])
def test_the_default_of_every_option_is_accepted_and_a_value_below_its_minimum_is_not(
    service: Service, kind: str
) -> None:
    service.client.put("/v1/collections/c").raise_for_status()
    for entry in listed(service)[kind]:
        defaults = {option["name"]: option["default"] for option in entry["options"]}
        if kind == "descriptors" and not entry["installed"]:
            continue
        low = [o["name"] for o in entry["options"] if o["minimum"] is not None]
        wrong = [(name, by_name(entry["options"])[name]["minimum"] - 1) for name in low]
        for options, refused in [(defaults, None), *(({name: value}, name) for name, value in wrong)]:
            request = {"method": entry["name"], "options": options}
            if kind == "descriptors":
                request = {"method": "cosine", "descriptor": {"name": entry["name"], "options": options}}
            answer = service.client.post("/v1/trainings", json={"collection": "nowhere"} | request)
            expected = 404 if refused is None else 422
            assert answer.status_code == expected, (request, answer.text)
            assert refused is None or repr(refused) in answer.text


def test_registered_recognisers_are_listed_and_a_broken_one_says_why(settings: Settings, tmp_path: Path) -> None:
    manifests = {"theirs": tiny_onnx(tmp_path), "gone": tmp_path / "gone.json"}
    with run_service(settings.model_copy(update={"descriptor_manifests": manifests})) as service:
        descriptors = by_name(listed(service)["descriptors"])
    assert (descriptors["theirs"]["dim"], descriptors["theirs"]["installed"]) == (5, True)
    assert descriptors["theirs"]["options"] == []
    assert "tiny.onnx" in descriptors["theirs"]["summary"]
    assert (descriptors["gone"]["installed"], descriptors["gone"]["dim"]) == (False, None)
    assert "no manifest at" in descriptors["gone"]["install"]


def test_a_descriptor_whose_weights_are_missing_says_what_installs_them(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlib_resnet, "find_spec", lambda name: None)
    missing = by_name(listed(service)["descriptors"])["dlib_resnet"]
    assert (missing["installed"], missing["dim"]) == (False, 128)
    assert dlib_resnet.INSTALL_COMMAND in missing["install"]


def test_the_operators_page_repeats_no_name_of_a_method_or_descriptor(service: Service) -> None:
    catalogue = listed(service)
    names = {entry["name"] for entry in catalogue["methods"] + catalogue["descriptors"]}
    scripts = "\n".join(path.read_text() for path in STATIC.glob("js/*.js"))
    quoted = {f"{quote}{name}{quote}" for name in names for quote in ('"', "'", "`")}
    assert [text for text in sorted(quoted) if text in scripts] == []
    assert json.dumps(catalogue["default_method"]) not in scripts
