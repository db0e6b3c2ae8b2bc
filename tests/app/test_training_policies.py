"""When trainings start without being asked: schedules, labels, budgets, and what keeps them from starting."""

import threading
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Collection, Face, Job, Label, Training, TrainingPolicy, now
from app.errors import Busy
from app.learning.policy_publication import publish_if_better
from app.learning.training_budget import DAY_SECONDS, read_budget_use
from app.learning.training_clock import find_next_time
from app.learning.training_policy import LabelCounts, count_labels, judge_policy, start_due_training
from app.publishing.requests import PublishRequest
from app.queue.jobs import end
from app.resources import Resources
from tests.gallery import enrol
from tests.service import Service
from workers.schedule import Schedule

KEY = ("c", "identity")
BASE = "/v1/collections/c/deployments/identity/training-policy"


def set_policy(resources: Resources, **fields: Any) -> None:
    with writing(resources.database) as session:
        policy = session.get(TrainingPolicy, KEY)
        if policy is None:
            policy = TrainingPolicy(collection_id="c", task="identity", trigger="labels", labels=2)
            session.add(policy)
        for name, value in fields.items():
            setattr(policy, name, value)


def label(resources: Resources, faces: list[Face], *pairs: tuple[int, int, bool]) -> None:
    with writing(resources.database) as session:
        for a, b, same in pairs:
            session.add(Label(task="identity", face_a=faces[a].pk, face_b=faces[b].pk, same=same, by="ana"))
        collection = session.get_one(Collection, "c")
        collection.change += 1
        collection.label_change = collection.change


def judge(resources: Resources) -> tuple[str, float | None]:
    with reading(resources.database) as session:
        policy = session.get_one(TrainingPolicy, KEY)
        status = judge_policy(session, policy, now(), lambda: count_labels(session, *KEY))
        return status.state, status.next_at


def list_jobs(resources: Resources) -> list[Job]:
    with reading(resources.database) as session:
        return list(session.scalars(select(Job).where(Job.kind == "train").order_by(Job.id)))


def end_job(resources: Resources, job: Job, state: str, seconds: float = 1.0) -> None:
    with writing(resources.database) as session:
        session.get_one(Job, job.id).started_at = now() - seconds
        end(session, job.id, state)
        training = session.get_one(Training, job.body["training"])
        training.model = f"m-{training.id}" if state == "succeeded" else None


@pytest.fixture
def faces(resources: Resources) -> list[Face]:
    return enrol(resources, "c", range(4), shots=2)


def test_enough_further_labels_start_one_training_that_is_an_ordinary_job(
    resources: Resources, faces: list[Face]
) -> None:
    set_policy(resources, labels=2)
    label(resources, faces, (0, 1, True))
    Schedule(resources).tick()
    assert (list_jobs(resources), judge(resources)[0]) == ([], "too_few_labels")
    label(resources, faces, (0, 2, False))
    Schedule(resources).tick()
    [job] = list_jobs(resources)
    assert (job.queue, job.lock, job.body["requested_by"]) == ("training", "train:c", "policy")
    assert judge(resources)[0] == "running"
    end_job(resources, job, "succeeded")
    assert judge(resources)[0] == "nothing_new"
    label(resources, faces, (2, 3, True))
    assert judge(resources)[0] == "too_few_labels", "labels count from the last training on"
    label(resources, faces, (4, 5, True))
    assert judge(resources)[0] == "due"


def test_several_workers_that_tick_at_once_start_one_training(resources: Resources, faces: list[Face]) -> None:
    label(resources, faces, (0, 1, True), (0, 2, False))
    for round_number in range(1, 4):
        set_policy(resources, last_labels=0, last_change=None, last_training=None)
        schedules = [Schedule(resources) for _ in range(4)]
        barrier, errors = threading.Barrier(len(schedules)), list[Exception]()

        def tick(schedule: Schedule, barrier: threading.Barrier = barrier, errors: list[Exception] = errors) -> None:
            barrier.wait()
            try:
                schedule.tick()
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=tick, args=(schedule,)) for schedule in schedules]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not errors
        jobs = list_jobs(resources)
        assert len(jobs) == round_number
        end_job(resources, jobs[-1], "succeeded")


def test_a_worker_that_judged_before_another_started_the_training_starts_none(
    resources: Resources, faces: list[Face]
) -> None:
    label(resources, faces, (0, 1, True), (0, 2, False))
    set_policy(resources)
    for expected in (True, False):
        with writing(resources.database) as session:
            counts = count_labels(session, *KEY)
            started = start_due_training(session, resources.settings, KEY, now(), counts)
            assert (started is not None) == expected
    assert len(list_jobs(resources)) == 1


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # SQLite has one writer at a time
def test_two_policies_of_a_collection_that_are_judged_at_once_start_one_training(
    resources: Resources, faces: list[Face]
) -> None:
    label(resources, faces, (0, 1, True), (0, 2, False))
    set_policy(resources, request={"method": "wpca", "sources": [{"from": "subjects"}]})
    other = ("c", "age")
    with writing(resources.database) as session:
        same = {"trigger": "labels", "labels": 0, "request": {"method": "wpca", "sources": [{"from": "subjects"}]}}
        session.add(TrainingPolicy(collection_id="c", task="age", **same))
    counts = LabelCounts(1, 1)

    def start_other() -> Training | None:
        with writing(resources.database) as session:
            session.execute(text("set local lock_timeout = '1s'"))
            return start_due_training(session, resources.settings, other, now(), counts)

    with writing(resources.database) as session:
        assert start_due_training(session, resources.settings, KEY, now(), counts) is not None
        with pytest.raises(Busy):
            start_other()
    assert start_other() is None
    assert len(list_jobs(resources)) == 1


def test_after_a_failure_no_training_starts_until_further_labels_come(resources: Resources, faces: list[Face]) -> None:
    set_policy(resources, trigger="schedule", hours=1.0, since=now() - 7200)
    label(resources, faces, (0, 1, True), (0, 2, False))
    Schedule(resources).tick()
    [job] = list_jobs(resources)
    end_job(resources, job, "failed")
    set_policy(resources, last_at=now() - 7200)
    assert judge(resources)[0] == "nothing_new"
    enrol(resources, "c", range(10, 12), shots=2)
    assert judge(resources)[0] == "failed"
    Schedule(resources).tick()
    assert len(list_jobs(resources)) == 1
    label(resources, faces, (2, 3, True))
    assert judge(resources)[0] == "due"


def test_labels_of_one_kind_start_no_training_and_are_named(resources: Resources) -> None:
    faces = enrol(resources, "c", range(6), shots=2, named=False)
    set_policy(resources, request={"method": "ldml"})
    label(resources, faces, (0, 1, True), (2, 3, True), (4, 5, True))
    with reading(resources.database) as session:
        policy = session.get_one(TrainingPolicy, KEY)
        status = judge_policy(session, policy, now(), lambda: count_labels(session, *KEY))
    assert status.state == "one_kind"
    assert "3 pairs are labelled 'same' and 0 'not the same'" in status.detail
    Schedule(resources).tick()
    assert not list_jobs(resources)
    label(resources, faces, (0, 2, False))
    assert judge(resources)[0] == "due"


def test_names_count_as_both_kinds_unless_the_policy_learns_from_labels_alone(
    resources: Resources, faces: list[Face]
) -> None:
    label(resources, faces, (0, 1, True), (2, 3, True))
    set_policy(resources, request={"method": "ldml"})
    assert judge(resources)[0] == "due"
    set_policy(resources, request={"method": "ldml", "sources": [{"from": "labels"}]})
    assert judge(resources)[0] == "one_kind"


def test_a_budget_is_counted_over_a_day_whoever_asked(resources: Resources, faces: list[Face]) -> None:
    label(resources, faces, (0, 1, True), (0, 2, False))
    started = now() - 20_000
    with writing(resources.database) as session:
        for number, (age, seconds) in enumerate(((DAY_SECONDS + 9, 900), (0, 300), (-500, 60))):
            job = Job(id=f"j{number}", kind="train", body={"collection": "c", "training": "t"}, state="succeeded")
            job.created_at = job.started_at = started - age
            job.finished_at = job.started_at + seconds
            session.add(job)
        never_started = Job(id="j9", kind="train", body={"collection": "c", "training": "t"}, state="cancelled")
        other = Job(id="j8", kind="train", body={"collection": "d", "training": "t"}, started_at=started)
        session.add_all([never_started, other])
    with reading(resources.database) as session:
        use = read_budget_use(session, "c", now())
    assert (len(use.runs), use.seconds, use.is_running) == (2, 360, False)
    set_policy(resources, max_trainings=2)
    assert judge(resources) == ("budget_spent", pytest.approx(started + DAY_SECONDS))
    set_policy(resources, max_trainings=3, max_seconds=350.0)
    assert judge(resources) == ("budget_spent", pytest.approx(started + DAY_SECONDS))
    set_policy(resources, max_seconds=50.0)
    assert judge(resources) == ("budget_spent", pytest.approx(started + 500 + DAY_SECONDS))
    set_policy(resources, max_seconds=400.0)
    assert judge(resources)[0] == "due"
    set_policy(resources, max_seconds=0.0)
    assert judge(resources)[0] == "never"


def test_a_training_that_cannot_be_planned_is_not_tried_again_until_something_changes(
    resources: Resources, faces: list[Face]
) -> None:
    label(resources, faces, (0, 1, True), (0, 2, False))
    set_policy(resources, request={"method": "no such method"})
    Schedule(resources).tick()
    assert judge(resources)[0] == "refused"
    assert not list_jobs(resources)


def moment(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("since", "last", "hours", "at", "expected"),
    [
        ("2026-03-01T10:00", None, 6, None, "2026-03-01T16:00"),
        ("2026-03-01T10:00", "2026-03-02T01:00", 6, None, "2026-03-02T07:00"),
        ("2026-03-01T10:00", None, 24, "03:00", "2026-03-02T03:00"),
        ("2026-03-01T02:00", None, 24, "03:00", "2026-03-01T03:00"),
        ("2026-03-01T10:00", "2026-03-02T03:00:02", 24, "03:00", "2026-03-03T03:00"),
        ("2026-03-01T10:00", "2026-03-02T05:30", 24, "03:00", "2026-03-03T03:00"),
        ("2026-03-01T10:00", "2026-03-02T03:00:02", 168, "03:00", "2026-03-09T03:00"),
    ],
)
def test_a_schedule_is_due_at_its_time_of_day(
    since: str, last: str | None, hours: float, at: str | None, expected: str
) -> None:
    due = find_next_time(moment(since), moment(last) if last else None, hours, at)
    assert datetime.fromtimestamp(due, UTC) == datetime.fromtimestamp(moment(expected), UTC)


def test_a_policy_is_read_and_changed_with_an_etag(service: Service) -> None:
    enrol(service.resources, "c", range(4), shots=2)
    answer = service.client.get(BASE)
    assert (answer.json()["trigger"], answer.json()["state"], answer.headers["ETag"]) == (
        "on_demand", "on_demand", '"0"',
    )  # fmt: skip
    body = {"trigger": "schedule", "hours": 24, "at": "03:00", "max_trainings": 1, "publish": "if_better"}
    changed = service.client.patch(BASE, json=body, headers={"If-Match": '"0"'})
    assert changed.status_code == 200, changed.text
    assert (changed.json()["state"], changed.json()["version"]) == ("scheduled", 1)
    assert 0 < changed.json()["next_at"] - now() <= DAY_SECONDS
    stale = service.client.patch(BASE, json={"hours": 48}, headers={"If-Match": '"0"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "PreconditionFailed")
    assert service.client.patch(BASE, json={"hours": 48}, headers={"If-Match": '"1"'}).json()["hours"] == 48
    assert service.client.get(BASE).json()["at"] == "03:00", "what a change does not state stays"
    zero = service.client.patch(BASE, json={"max_trainings": 0}).json()
    assert (zero["state"], zero["next_at"]) == ("never", None)
    assert "budget is zero" in zero["detail"]
    assert service.client.patch(BASE, json={"hours": 24}, headers=service.key("operator")).status_code == 403
    assert service.client.get(BASE, headers=service.key("operator")).status_code == 200
    assert service.client.get("/v1/collections/c/deployments/nothing/training-policy").status_code == 404
    assert service.client.get("/v1/collections/nowhere/deployments/identity/training-policy").status_code == 404


WRONG = [
    ({}, "InvalidParameter"),
    ({"labels": 0}, "InvalidParameter"),
    ({"hours": 0}, "InvalidParameter"),
    ({"at": "25:00"}, "InvalidParameter"),
    ({"trigger": "schedule", "hours": 7, "at": "03:00"}, "InvalidParameter"),
    ({"max_trainings": -1}, "InvalidParameter"),
    ({"trigger": "whenever"}, "InvalidParameter"),
    ({"trigger": "labels", "training": {"method": "magic"}}, "UnknownComponent"),
    ({"trigger": "labels", "training": {"sources": [{"task": "height", "from": "labels"}]}}, "UnknownTask"),
]


def test_a_policy_that_cannot_work_is_refused(service: Service) -> None:
    enrol(service.resources, "c", range(2), shots=2)
    for body, code in WRONG:
        answer = service.client.patch(BASE, json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, code), body
    assert service.client.get(BASE).json()["version"] == 0


def test_a_candidate_is_published_in_the_collection_of_its_training(
    resources: Resources, faces: list[Face], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that was restored under another name by an earlier version has a policy with the same last training."""
    published = list[str]()

    def request_publication(session: Session, collection_id: str, request: PublishRequest) -> None:
        published.append(collection_id)

    monkeypatch.setattr("app.learning.policy_publication.request_publication", request_publication)
    report = {"tasks": {"identity": {"difference": {"mAP": {"low": 0.1}}}}}
    with writing(resources.database) as session:
        training = Training(request={"collection": "c"}, model="m1", report=report)
        session.add_all([training, Collection(id="a-copy")])
        session.flush()
        for collection in ("a-copy", "c"):
            policy = {"collection_id": collection, "task": "identity", "publish": "if_better"}
            session.add(TrainingPolicy(**policy, last_training=training.id))
            session.flush()
        publish_if_better(session, training)
    assert published == ["c"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_labels_start_a_real_training_whose_better_candidate_is_published(service: Service) -> None:
    faces = enrol(service.resources, "c", range(40), shots=3)
    ldml = {"method": "ldml", "descriptor": "lbp", "dim": 16, "holdout": 0.5, "options": {"steps": 60, "start": "pca"}}
    policy = {"trigger": "labels", "labels": 20, "publish": "if_better", "max_trainings": 1, "training": ldml}
    assert service.client.patch(BASE, json=policy).json()["state"] == "too_few_labels"
    pairs = [(a, b, i % 3 != 2) for i, (a, b) in enumerate(pairwise(faces[:30]))]
    labels = [{"face_a": a.face_id, "face_b": b.face_id, "same": same} for a, b, same in pairs]
    assert service.client.post("/v1/labels", json={"labels": labels}).json()["accepted"] == 29
    job = wait_for_policy(service)
    assert (job["kind"], job["requested_by"], job["state"]) == ("train", "policy", "succeeded"), job["problem"]
    shown = service.client.get(BASE).json()
    assert shown["last"]["model"] == job["result"]["model"]
    assert shown["last"]["better"] is not None
    publications = service.client.get("/v1/jobs", params={"collection": "c", "kind": "publish"}).json()["jobs"]
    assert len(publications) == shown["last"]["better"]
    trainings = service.client.get("/v1/jobs", params={"collection": "c", "kind": "train"}).json()["jobs"]
    assert len(trainings) == 1, "the budget is one a day"


def wait_for_policy(service: Service, seconds: float = 240.0) -> dict[str, Any]:
    until = now() + seconds
    while now() < until:
        for job in service.client.get("/v1/jobs", params={"collection": "c", "kind": "train"}).json()["jobs"]:
            if job["finished_at"]:
                return dict(service.client.get(f"/v1/jobs/{job['id']}").json())
        threading.Event().wait(0.2)
    raise AssertionError("no training of the policy has ended")
