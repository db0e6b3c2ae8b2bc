"""Who sees the results of jobs, and the reasons why they failed."""

import json

import httpx
import pytest

from app.db.session import writing
from app.db.tables import Job, now
from app.deps.caller import RANK
from app.deps.job_response import RESULT_ROLES
from app.queue.messages import MESSAGES
from tests.service import Service

pytestmark = pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)


@pytest.fixture
def jobs(lasting_service: Service) -> dict[str, tuple[str, str]]:
    """Kind -> ids of a job that has succeeded and of one that has failed."""
    result, problem = {"people": ["ada"]}, {"code": "GateRefused", "status": 409, "reasons": ["ada is lost"]}
    with writing(lasting_service.resources.database) as session:
        ended = {
            kind: (
                Job(kind=kind, body={}, queue="nobody", state="succeeded", result=result, finished_at=now()),
                Job(kind=kind, body={}, queue="nobody", state="failed", problem=problem, finished_at=now()),
            )
            for kind in MESSAGES
        }
        session.add_all(job for pair in ended.values() for job in pair)
        session.flush()
        return {kind: (succeeded.id, failed.id) for kind, (succeeded, failed) in ended.items()}


def read_last_event(client: httpx.Client, job: str) -> object:
    with client.stream("GET", f"/v1/jobs/{job}/events") as answer:
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    return json.loads(events[-1])


@pytest.mark.parametrize("role", list(RANK))
def test_a_result_is_shown_to_the_roles_that_may_read_it_elsewhere(
    lasting_service: Service, jobs: dict[str, tuple[str, str]], role: str
) -> None:
    assert RESULT_ROLES.keys() == MESSAGES.keys()
    with httpx.Client(base_url=lasting_service.url, headers=lasting_service.key(role), timeout=20) as client:
        for kind, (succeeded, failed) in jobs.items():
            may_see = RANK[role] >= RANK[RESULT_ROLES[kind]]
            shown = client.get(f"/v1/jobs/{succeeded}").json()
            assert (shown["state"], shown["result"] is not None) == ("succeeded", may_see), kind
            problem = client.get(f"/v1/jobs/{failed}").json()["problem"]
            assert (problem["code"], "reasons" in problem) == ("GateRefused", may_see), kind
        for kind in ("import", "compare"):
            shown = client.get(f"/v1/jobs/{jobs[kind][0]}").json()
            assert read_last_event(client, jobs[kind][0]) == shown, "the stream shows the same"


def test_readers_see_no_result_that_only_operators_can_read(
    lasting_service: Service, jobs: dict[str, tuple[str, str]]
) -> None:
    with httpx.Client(base_url=lasting_service.url, headers=lasting_service.key("reader")) as reader:
        hidden = {kind for kind, (job, _) in jobs.items() if reader.get(f"/v1/jobs/{job}").json()["result"] is None}
    assert hidden == {"train", "evaluate", "examine", "forecast", "erase", "compare", "snapshot", "restore"}
