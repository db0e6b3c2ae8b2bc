"""The console shows two models side by side."""

from pathlib import Path

from app.config import Settings
from tests import gallery
from tests.flows.console import Page, borrow_browser
from tests.ml.tiny_onnx import tiny_onnx
from tests.service import run_service

BASE = "/v1/collections/staff"


def test_a_candidate_is_compared_with_the_champion(tmp_path: Path) -> None:
    manifests = {"tiny": tiny_onnx(tmp_path)}
    settings = Settings(
        home=tmp_path / "home", poll_seconds=0.05, workers=1, default_recogniser="lbp", descriptor_manifests=manifests
    )
    with run_service(settings) as service, borrow_browser() as browser:
        service.client.put(BASE).raise_for_status()
        gallery.enrol(service.resources, "staff", range(20), shots=3)
        job = service.wait(service.client.post(f"{BASE}:use-recogniser", json={"recogniser": "tiny"}))
        assert job["problem"]["code"] == "GateRefused", "the tiny recogniser tells nobody apart"
        page = Page(browser, service)
        page.enter()
        page.open("staff/learn")
        [button] = page.wait(lambda: page.all("[data-compare]"))
        button.click()
        text = page.read("#comparison")
        assert "20 people of this collection; neither model has learned from them" in text
        for metric, side in (("mAP", "mAP"), ("1-call@1", "right person first"), ("strangers_named", "strangers")):
            assert side in page.read(f"[data-metric='{metric}']")
        assert "The gate would refuse it" in page.read("#gate")
        assert not page.faults()
