"""Descriptors end to end: train on them over HTTP, publish, search, explain and roll back."""

from math import prod
from pathlib import Path
from typing import Any

import pytest

from app.config import Settings
from ml.descriptors.common.crop_descriptors import list_crop_descriptors
from ml.descriptors.common.file_backed import manifest_types
from tests.flows.model_steps import publish_model, search_and_roll_back, wait_for_model
from tests.flows.test_training import STRONG, train, upload
from tests.gallery import crops
from tests.ml.tiny_onnx import tiny_onnx
from tests.service import Service, run_service
from workers.training.vocabularies import RELEARN_FACTOR

PEOPLE, SHOTS, DIM = 12, 3, 8


BUILT_IN = [name for name in list_crop_descriptors() if name not in manifest_types()]


def test_the_built_in_descriptors_are_tested() -> None:
    assert {"lbp", "cslbp", "fplbp", "sift", "fisher"} <= set(BUILT_IN)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("names", [[name] for name in BUILT_IN] + [["cslbp", "sift"]], ids="+".join)
def test_a_model_of_a_built_in_descriptor_can_be_trained_published_searched_and_rolled_back(
    service: Service, names: list[str]
) -> None:
    upload(service, "c", range(PEOPLE), SHOTS)
    fields: dict[str, Any] = {"descriptor": names[0]} if len(names) == 1 else {"descriptors": names}
    model = train_and_check_explanation(service, names, method="wpca", dim=DIM, **fields)
    search_and_roll_back(service, model)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_model_of_an_onnx_recogniser_can_be_trained_published_searched_and_rolled_back(
    settings: Settings, tmp_path: Path
) -> None:
    manifests = {"theirs": tiny_onnx(tmp_path)}
    with run_service(settings.model_copy(update={"descriptor_manifests": manifests})) as service:
        upload(service, "c", range(PEOPLE), SHOTS)
        unknown = train(service, method="cosine", descriptor="onnx")
        assert (unknown.status_code, "theirs" in unknown.text) == (422, True)
        model = train_and_check_explanation(service, ["onnx"], method="cosine", descriptor="theirs")
        photo = {"file": crops(90, 1, STRONG)["grey"]}
        answers = [
            service.client.post("/v1/collections/c/faces", files=photo, data={"aligned": True, "subject": subject})
            for subject in ("new", "other")
        ]
        assert [a.status_code for a in answers] == [201, 409]
        kept = [name for name in service.resources.blobs.names("c") if name.endswith(".f16")]
        assert len(kept) == PEOPLE * SHOTS + 1
        search_and_roll_back(service, model)


def train_and_check_explanation(service: Service, names: list[str], **fields: Any) -> str:
    """A model of these descriptors serves `c`, and each part of its distances is said."""
    model = wait_for_model(service, train(service, holdout=0.25, **fields))
    assert [d["name"] for d in model["descriptors"]] == names
    publish_model(service, model["id"])
    photo = crops(3, 3000, STRONG)["grey"]
    answer = service.client.post(
        "/v1/collections/c/search",
        params={"aligned": True, "limit": 3, "include": "explanation"},
        files={"file": photo},
    )
    for match in answer.json()["faces"][0]["matches"]:
        explanation = match["explanation"]
        assert [part["descriptor"] for part in explanation["parts"]] == names
        total = sum(part["contribution"] for part in explanation["parts"]) + explanation["rest"]
        assert total == pytest.approx(match["distance"], rel=1e-3, abs=1e-3)
        for part in explanation["parts"]:
            if part["grid"]:
                assert len(part["cells"]) * len(part["cells"][0]) == prod(part["grid"][n] for n in ("rows", "columns"))
                assert sum(map(sum, part["cells"])) == pytest.approx(part["contribution"], abs=1e-6)
    return str(model["id"])


@pytest.mark.usefixtures("small_vocabularies")
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_trainings_share_a_vocabulary_until_the_gallery_has_grown_much(service: Service) -> None:
    upload(service, "c", range(5), 2)
    fields: dict[str, Any] = {"method": "wpca", "dim": 2, "descriptor": "fisher", "holdout": 0}
    first = wait_for_model(service, train(service, **fields))["descriptors"]
    assert wait_for_model(service, train(service, **fields))["descriptors"] == first
    upload(service, "c", range(10, 10 + 5 * (RELEARN_FACTOR - 1)), 2)
    after = wait_for_model(service, train(service, **fields))["descriptors"]
    assert after[0]["options"]["pin"] != first[0]["options"]["pin"]
