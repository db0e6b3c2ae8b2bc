"""What a flow does with a training that was asked for: wait, publish its model, search with it, roll back."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.flows.test_training import STRONG
from tests.gallery import crops
from tests.service import Service

DEPLOYMENT = "/v1/collections/c/deployments/identity"


def learned(service: Service, answer: Any) -> dict[str, Any]:
    """The model that a training of collection `c` made."""
    job = service.wait(answer, 120)
    assert job["state"] == "succeeded", job["problem"]
    shown: dict[str, Any] = service.client.get(f"/v1/models/{job['result']['model']}").json()
    return shown


def published(service: Service, model: str) -> None:
    """It serves `c` for each of its tasks, whatever the gate thinks of it."""
    forced = {"model": model, "override": True, "reason": "a test of the way, not of the metric"}
    job = service.wait(service.client.post(f"{DEPLOYMENT}:publish", json=forced))
    assert job["state"] == "succeeded", job["problem"]


def searched_and_taken_back(
    service: Service, model: str, tasks: Sequence[str] = ("identity",), *, from_zero: bool = True
) -> None:
    """The model that serves `c` knows the first photo of drawn person 3, its subject p3; then the first one serves.

    from_zero: a face and itself are at no distance, as by all metrics but inner products.
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
