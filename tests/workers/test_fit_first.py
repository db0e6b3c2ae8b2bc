"""The first model that is learned, from the first faces."""

from sqlalchemy import select

from app.db.session import reading, writing
from app.db.tables import Deployment, Generation, Job
from app.queue.messages import FitFirst, Publish
from app.queue.queue import enqueue
from app.resources import Resources
from tests.gallery import context, enrol
from workers.context import JobContext
from workers.handlers import fit_first


def begin(resources: Resources) -> JobContext:
    with writing(resources.database) as session:
        job = enqueue(session, FitFirst(collection="c"))
        job.state, job.worker = "running", "test"
    return context(resources, job)


def published(resources: Resources) -> list[dict[str, object]]:
    with reading(resources.database) as session:
        return [dict(j.body) for j in session.scalars(select(Job).where(Job.kind == Publish.kind))]


def test_the_first_model_is_fitted_once_and_its_publication_written_down_once(resources: Resources) -> None:
    enrol(resources, "c", range(20), shots=3)
    result = fit_first.run(FitFirst(collection="c"), begin(resources))
    made = resources.generations.get(result["model"])
    assert made.embedder.learned["projection"].shape == (15, 9860)
    assert made.calibrations["identity"].slope > 0
    assert result["report"]["current"]["protocol"] == "held-out-0.2"
    assert fit_first.run(FitFirst(collection="c"), begin(resources)) == {"model": result["model"]}
    [publish] = published(resources)
    assert (publish["model"], publish["by"], publish["reason"]) == (result["model"], "service", "the first 60 faces")


def test_nameless_faces_will_do(resources: Resources) -> None:
    enrol(resources, "c", range(20), shots=1, named=False)
    result = fit_first.run(FitFirst(collection="c"), begin(resources))
    assert result["report"]["candidate"] is None
    assert len(published(resources)) == 1


def test_it_does_nothing_where_something_else_serves(resources: Resources) -> None:
    enrol(resources, "c", range(4), shots=1)
    assert fit_first.run(FitFirst(collection="c"), begin(resources))["model"] is None, "too few faces"
    enrol(resources, "c", range(10, 30), shots=1)
    with writing(resources.database) as session:
        session.add(Generation(id="other", manifest={}))
        session.flush()
        session.get_one(Deployment, ("c", "identity")).champion = "other"
    assert fit_first.run(FitFirst(collection="c"), begin(resources))["model"] is None
    assert fit_first.run(FitFirst(collection="gone"), begin(resources))["model"] is None
    assert published(resources) == []
