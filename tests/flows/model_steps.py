"""Steps that flows share after they started a training: wait for its model, publish it, search, and roll back."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.flows.test_training import STRONG
from tests.gallery import crops
from tests.service import Service

DEPLOYMENT = "/v1/collections/c/deployments/identity"


def wait_for_model(service: Service, answer: Any) -> dict[str, Any]:
    """Wait for a training of collection `c` and return its model as the API shows it.

    answer: the response to POST /v1/trainings
    """
    job = service.wait(answer, 120)
    assert job["state"] == "succeeded", job["problem"]
    model: dict[str, Any] = service.client.get(f"/v1/models/{job['result']['model']}").json()
    return model


def publish_model(service: Service, model: str) -> None:
    """Publish the model for each of its tasks in `c`, and override the gate."""
    body = {"model": model, "override": True, "reason": "this test is about the steps, not about the metric"}
    job = service.wait(service.client.post(f"{DEPLOYMENT}:publish", json=body))
    assert job["state"] == "succeeded", job["problem"]


def search_and_roll_back(
    service: Service, model: str, tasks: Sequence[str] = ("identity",), *, from_zero: bool = True
) -> None:
    """Check that this model serves `c` and finds subject p3 by its first photo; then return to the built-in model.

    from_zero: the distance of a face to itself is 0, as with all metrics but inner products
    """
    photo = crops(3, 3000, STRONG)["grey"]
    for task in tasks:
        answer = service.client.post(
            "/v1/collections/c/search", params={"task": task, "aligned": True, "limit": 5}, files={"file": photo}
        )
        assert answer.status_code == 200, answer.text
        nearest, *others = answer.json()["faces"][0]["matches"]
        assert answer.json()["model"] == model
        assert nearest["subject"]["id"] == "p3"
        assert nearest["distance"] == pytest.approx(0, abs=1e-3) or not from_zero
        assert all(nearest["distance"] < other["distance"] for other in others)
    assert service.client.post(f"{DEPLOYMENT}:rollback").json()["champion"] == "lbp-l2"
