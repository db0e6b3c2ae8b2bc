"""Random hostile archives over HTTP: no internal error, nothing left on the disk, and the API answers meanwhile.

`ARCHIVE_CASES=200 FUZZ_SEED=7 pytest tests/fuzz/test_hostile_archives.py` tries others. `python -m
tests.fuzz.attack_archives` sends 2,000 to a service that runs as processes of its own.
"""

import os

import pytest
from sqlalchemy import select

from app.db.session import reading
from app.db.tables import Face
from tests.fuzz.archive_attack import ArchiveAttack, find_faults, wait_for_cleanup
from tests.fuzz.hostile_archives import HostileArchives
from tests.fuzz.livez_watch import LivezTimes, watch_livez
from tests.service import Service

CASES = int(os.environ.get("ARCHIVE_CASES", "60"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
MAX_LIVEZ_SECONDS = 5.0
"""The API shares this process with the worker and the client, and the machine with other tests."""


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_hostile_archives_are_imported_or_refused(service: Service) -> None:
    attacker = ArchiveAttack(service.client, SEED)
    with watch_livez(service.url) as livez:
        attacker.run(CASES)
    with reading(service.resources.database) as session:
        image_ids = set(session.scalars(select(Face.image_id)))
    assert attacker.faults == []
    assert attacker.outcomes.total() == CASES
    assert {"job succeeded", "job failed InvalidArchive"} <= attacker.outcomes.keys()
    assert wait_for_cleanup(service.resources.settings.home, image_ids) == []
    assert livez["service"].slowest < MAX_LIVEZ_SECONDS


def test_a_seed_draws_the_same_archives_of_all_kinds() -> None:
    first, second = HostileArchives(5), HostileArchives(5)
    drawn_kinds = set()
    for _ in range(200):
        kind, data = first.draw()
        drawn_kinds.add(kind)
        assert second.draw() == (kind, data)
    assert len(drawn_kinds) > 24


ITEM = {"name": "a.png", "state": "failed", "reasons": ["InvalidImageFormat"]}
GOOD = {"state": "succeeded", "problem": None, "result": {"photo_failures": 0}}
REFUSED = {"state": "failed", "problem": {"code": "InvalidArchive", "detail": "it is cut short"}}


@pytest.mark.parametrize(
    ("job", "items"),
    [
        (GOOD, []),
        (GOOD, [ITEM | {"reasons": []}]),
        (GOOD, [ITEM | {"state": "queued"}]),
        (GOOD, [ITEM | {"reasons": ["PHOTO_FAILED"]}]),
        (GOOD | {"result": {"photo_failures": 1}}, [ITEM]),
        (REFUSED, [ITEM]),
        (REFUSED | {"problem": {"code": "InternalServerError", "detail": "x"}}, []),
        (REFUSED | {"problem": {"code": "InvalidArchive", "detail": ""}}, []),
        ({"state": "cancelled", "problem": None}, []),
        ({"state": "running", "problem": None}, []),
    ],
)
def test_the_attack_sees_what_is_wrong_with_a_job(job: dict[str, object], items: list[dict[str, object]]) -> None:
    assert list(find_faults(job, items, is_cancelled=False))
    assert not list(find_faults(GOOD, [ITEM], is_cancelled=False))
    assert not list(find_faults(REFUSED, [], is_cancelled=False))


def test_slow_answers_are_counted() -> None:
    times = LivezTimes.of([0.2, 0.001, 0.002, 0.003])
    assert (times.slowest, times.slow_share) == (0.2, 0.25)
