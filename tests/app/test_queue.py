"""The job queue: who gets which job, and what happens when a worker dies."""

import threading

import pytest
from sqlalchemy import func, select

from app.db.session import reading, writing
from app.db.tables import Collection, Job, now
from app.queue import jobs
from app.queue.messages import Erase, ExamineGallery, ImportArchive, IngestBatch, Sweep, Train
from app.resources import Resources
from workers.handlers import HANDLERS
from workers.worker import Worker


def add(resources: Resources, *messages: object, **options: object) -> list[str]:
    with writing(resources.database) as session:
        return [jobs.enqueue(session, m, **options).id for m in messages]  # type: ignore[arg-type]


def take(resources: Resources, worker: str = "w", queue: str = "default", lease: float = 10) -> str | None:
    with writing(resources.database) as session:
        job = jobs.claim(session, queue=queue, worker=worker, lease=lease)
        return job and job.id


def state(resources: Resources, job_id: str) -> str:
    with reading(resources.database) as session:
        return session.get_one(Job, job_id).state


def test_a_worker_takes_the_oldest_job_of_its_own_queue(resources: Resources) -> None:
    first, second = add(resources, Sweep(), Sweep())
    [fit] = add(resources, Train(training="t", collection="a"))
    assert [take(resources), take(resources), take(resources)] == [first, second, None]
    assert take(resources, queue="training") == fit


def test_parts_of_an_import_are_taken_after_all_other_jobs(resources: Resources) -> None:
    [whole] = add(resources, Sweep())
    with writing(resources.database) as session:
        part = jobs.enqueue(session, IngestBatch(job=whole, first=0, last=1), parent=whole).id
    [later] = add(resources, Sweep())
    assert [take(resources), take(resources), take(resources)] == [whole, later, part]


def enqueue_and_fail(resources: Resources) -> None:
    with writing(resources.database) as session:
        jobs.enqueue(session, Sweep())
        raise RuntimeError


def test_a_transaction_that_is_rolled_back_leaves_no_job(resources: Resources) -> None:
    with pytest.raises(RuntimeError):
        enqueue_and_fail(resources)
    assert take(resources) is None


def test_concurrent_workers_never_take_the_same_job(resources: Resources) -> None:
    jobs = add(resources, *[Sweep()] * 40)
    job_ids: list[str] = []

    def work(name: str) -> None:
        while job := take(resources, name):
            job_ids.append(job)

    threads = [threading.Thread(target=work, args=(f"w{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(job_ids) == jobs


def test_a_job_waits_for_an_earlier_job_with_the_same_lock(resources: Resources) -> None:
    first, second, other = add(resources, *[Train(training="t", collection=c) for c in ("a", "a", "b")])
    assert take(resources, queue="training") == first
    assert take(resources, queue="training") == other
    assert take(resources, queue="training") is None
    with writing(resources.database) as session:
        assert jobs.end(session, first, "succeeded", worker="w")
    assert take(resources, queue="training") == second


def test_a_job_of_a_dead_worker_is_retried_and_fails_after_too_many_attempts(resources: Resources) -> None:
    [job] = add(resources, Sweep())
    for _ in range(jobs.MAX_TRIES):
        assert take(resources, lease=-1) == job
        with writing(resources.database) as session:
            jobs.free_abandoned(session)
    assert state(resources, job) == "failed"
    with reading(resources.database) as session:
        assert session.get_one(Job, job).problem["code"] == "WorkerLost"  # type: ignore[index]


def test_a_worker_that_lost_its_lease_can_neither_renew_nor_finish_the_job(resources: Resources) -> None:
    [job] = add(resources, Sweep())
    take(resources, "slow", lease=-1)
    with writing(resources.database) as session:
        jobs.free_abandoned(session)
    take(resources, "quick")
    with writing(resources.database) as session:
        assert not jobs.renew(session, job, worker="slow", lease=10)
        assert not jobs.end(session, job, "succeeded", worker="slow")
        assert jobs.end(session, job, "succeeded", worker="quick")
        assert not jobs.end(session, job, "failed", worker="quick"), "a job ends once"


def test_a_postponed_job_counts_no_attempt_and_lets_newer_jobs_pass(resources: Resources) -> None:
    old, fresh = add(resources, Sweep(), Erase(collection="a"))
    assert take(resources) == old
    with writing(resources.database) as session:
        jobs.put_back(session, old, worker="w", delay=-1)
    assert take(resources) == fresh
    assert take(resources) == old
    with reading(resources.database) as session:
        assert session.get_one(Job, old).tries == 1


def test_cancelling_ends_a_queued_job_and_interrupts_a_running_one(resources: Resources) -> None:
    [parent] = add(resources, Sweep())
    assert take(resources) == parent
    [child] = add(resources, Sweep(), parent=parent)
    with writing(resources.database) as session:
        jobs.cancel(session, session.get_one(Job, parent))
        assert not jobs.renew(session, parent, worker="w", lease=10)
    assert state(resources, child) == "cancelled"
    assert state(resources, parent) == "running"


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_job_that_is_claimed_while_it_is_cancelled_runs_until_it_is_interrupted(resources: Resources) -> None:
    [job] = add(resources, Sweep())
    with writing(resources.database) as session:
        queued = session.get_one(Job, job)
        assert take(resources) == job
        jobs.cancel(session, queued)
    assert state(resources, job) == "running"
    with writing(resources.database) as session:
        assert not jobs.renew(session, job, worker="w", lease=10)


def test_a_delayed_job_is_not_taken_before_its_time(resources: Resources) -> None:
    add(resources, Sweep(), delay=60)
    assert take(resources) is None
    with reading(resources.database) as session:
        assert session.scalar(select(func.max(Job.not_before))) > now()  # type: ignore[operator]


def take_for(resources: Resources, recent: list[str]) -> str | None:
    with writing(resources.database) as session:
        job = jobs.claim(session, queue="training", worker="w", lease=10, recent=recent)
        return job and job.collection_id


def test_collections_have_their_turns_one_after_the_other(resources: Resources) -> None:
    """However many jobs wait for the first. Among those of one collection, the oldest comes first."""
    with writing(resources.database) as session:
        session.add_all(Collection(id=name) for name in "abc")
    first, *_ = add(resources, *[ExamineGallery(collection="a")] * 6)
    add(resources, ExamineGallery(collection="b"), ExamineGallery(collection="b"), ExamineGallery(collection="c"))
    assert take(resources, queue="training") == first
    assert take_for(resources, ["a"]) == "b"
    assert take_for(resources, ["a", "b"]) == "c"
    assert take_for(resources, ["a", "b", "c"]) == "a", "whose turn was the longest ago"
    assert take_for(resources, ["b", "c", "a"]) == "b"
    assert take_for(resources, ["c", "a", "b"]) == "a", "nobody else waits"
    assert take_for(resources, []) == "a"


def test_parts_of_imports_have_turns_too(resources: Resources) -> None:
    with writing(resources.database) as session:
        session.add_all(Collection(id=name) for name in "ab")
    for name in "ab":
        [whole] = add(resources, ImportArchive(collection=name, path="/nowhere"))
        assert take(resources) == whole
        with writing(resources.database) as session:
            for number in range(3):
                jobs.enqueue(session, IngestBatch(job=whole, first=number, last=number + 1), parent=whole)
    taken = []
    for _ in range(6):
        with writing(resources.database) as session:
            job = jobs.claim(session, queue="default", worker="w", lease=10, recent=taken[-1:])
            taken.append(job.collection_id if job and job.collection_id else "")
    assert taken == ["a", "b"] * 3


def test_a_worker_gives_collections_their_turns(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setitem(HANDLERS, ExamineGallery, lambda message, context: done.append(message.collection))
    with writing(resources.database) as session:
        session.add_all(Collection(id=name) for name in "abc")
    add(resources, *[ExamineGallery(collection="a")] * 4)
    add(resources, ExamineGallery(collection="b"), ExamineGallery(collection="c"), ExamineGallery(collection="b"))
    worker = Worker(resources, "training")
    while worker.step():
        pass
    assert done == ["a", "b", "c", "a", "b", "a", "a"]
