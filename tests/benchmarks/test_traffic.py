"""The traffic of the benchmarks of load: what it adds to a service over time."""

import random

import numpy as np
import pytest

from benchmarks.load.connections import Address
from benchmarks.load.traffic import KEPT_ADDITIONS, STEADY_SHARES, Gallery, MixedTraffic, Request

REQUESTS = 20_000
ANSWERS = {"label": {"accepted": 1}, "withdraw": {"withdrawn": 1}, "delete": None}
REMOVALS = {"delete": "enrol", "withdraw": "label"}


@pytest.mark.parametrize("refused_share", [0.0, 0.4])
def test_steady_traffic_keeps_as_many_faces_and_labels_however_long_it_runs(refused_share: float) -> None:
    """They counted as growth of the service: by chance they became more, and a removal that was refused was lost."""
    draw, kept, most = random.Random(0), {"enrol": 0, "label": 0}, {"enrol": 0, "label": 0}
    gallery = Gallery("staff", np.zeros((2, 4), np.float32), ["a", "b"], ["face-a", "face-b"])
    traffic = MixedTraffic(Address("localhost", 80, "key"), gallery, photos=[b"photo"], shares=STEADY_SHARES)
    for number in range(REQUESTS):
        request = traffic.draw()
        if draw.random() < refused_share:
            request.note_refusal()
            continue
        if request.kind in kept:
            kept[request.kind] += 1
            most[request.kind] = max(kept[request.kind], most[request.kind])
            assert request.is_right(answer(request, number))
        elif request.kind in REMOVALS:
            kept[REMOVALS[request.kind]] -= 1
            assert request.is_right(answer(request, number))
    assert most == {"enrol": KEPT_ADDITIONS, "label": KEPT_ADDITIONS}
    assert min(kept.values()) >= KEPT_ADDITIONS - 1


def answer(request: Request, number: int) -> object:
    """Return what a service answers to a request that adds or removes something."""
    return {"face_records": [{"face_id": f"face-{number}"}]} if request.kind == "enrol" else ANSWERS[request.kind]
