"""SQLite reads each page of a list in the order of an index. To sort the list anew takes longer the more it holds."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import httpx
import pytest
from sqlalchemy import Engine, event, insert
from sqlalchemy.orm import Session

from app.db import examples, statement_limits
from app.db.session import reading, writing
from app.db.tables import (
    Base,
    ClusteredFace,
    Erasure,
    Evaluation,
    FaceCluster,
    Job,
    JobItem,
    KeptSnapshot,
    Label,
    Training,
)  # fmt: skip
from app.deps.paging import encode_token
from app.storage.audit_log.drafts import EntryDraft
from tests.openapi_checker import openapi_document
from tests.rows import GalleryWriter, make_model, people
from tests.service import Service

CLUSTER = 12
ADDED_ROWS = 300
ERASURE = {"collection_created_at": 0.0, "target": "face", "change": 1, "first_change": 1, "state": "final"}
GROWING_LISTS = {
    ("/v1/collections", False): "faces are counted",
    ("/v1/collections", True): "faces are counted",
    ("/v1/collections/{collection}/labellers", False): "all votes decide how much one weighs",
    ("/v1/collections/{collection}/labellers", True): "all votes decide how much one weighs",
    ("/v1/jobs", True): "trainings decide who sees a job",
    ("/v1/jobs/{job_id}/items", True): "trainings decide who sees a job",
    ("/v1/models", True): "trainings decide who sees a model",
}
"""Path, whether the key is bound -> why a page takes longer the more there is."""
MODEL = make_model("m-one")
NO_ROW_SECONDS = 1e9
"""So long after an example no row was written."""
REQUEST_THREADS = "AnyIO worker thread"
"""How the names of the threads begin that answer requests. What others read meanwhile is no list."""
SORTED_LISTS = {
    ("/v1/labels", "face"): "the labels of one face are in two indexes",
    ("/v1/models", None): "those of a bound key are in several indexes",
}
"""Path, filter -> why the list may be sorted."""


class ListRequest(NamedTuple):
    """A request for a page. filter_name: the only filter, None: without one"""

    path: str
    filter_name: str | None
    params: dict[str, Any]
    headers: dict[str, str]

    def send(self, service: Service, **others: Any) -> httpx.Response:
        """Send the request, which may name a `next_token` that is none of this list."""
        url = self.path.format(collection=examples.COLLECTION, cluster=CLUSTER, job_id=examples.JOB)
        answer = service.client.get(url, params=self.params | others, headers=self.headers)
        is_refused = answer.status_code == 422 and "next_token" in self.params
        assert answer.status_code == 200 or is_refused or answer.status_code == 404, answer.text
        return answer


@pytest.fixture(scope="module")
def service(lasting_service: Service) -> Service:
    """A service on SQLite with all that the lists' examples name."""
    resources = lasting_service.resources
    if resources.database.dialect.name != "sqlite":
        pytest.skip("PostgreSQL chooses its plans by what the tables hold")
    gallery = GalleryWriter(resources, examples.COLLECTION).make(MODEL)
    rows, _ = people(1, 3)
    gallery.add({MODEL.id: rows}, [examples.SUBJECT, examples.SUBJECT, None])
    with writing(resources.database) as session:
        session.add(Job(id=examples.JOB, kind="import", body={"collection": examples.COLLECTION}, state="succeeded"))
        session.add(FaceCluster(pk=CLUSTER, collection_id=examples.COLLECTION, probability=1.0))
        session.flush()
        session.add(ClusteredFace(face_pk=gallery.pks[-1], cluster_pk=CLUSTER))
    return lasting_service


def iterate_requests(
    headers: dict[str, str], find_value: Callable[[dict[str, Any]], Any] | None = None
) -> Iterator[ListRequest]:
    """Yield requests for a first and a later page of every list, in each order, without a filter and with each one.

    find_value: returns the value of a filter, by default its example
    """
    for path, operations in openapi_document()["paths"].items():
        parameters = {p["name"]: p for p in operations.get("get", {}).get("parameters", [])}
        if "next_token" not in parameters:
            continue
        filters = [name for name, p in parameters.items() if p["in"] == "query" and p["schema"].get("title") != "Order"]
        filters = [name for name in filters if name not in ("limit", "next_token")]
        orders = ["oldest", "newest"] if "order" in parameters else [None]
        for name, order, last_key in product([None, *filters], orders, (None, "a", 1)):
            params = {} if name is None else {name: (find_value or find_example)(parameters[name]["schema"])}
            if name == "subject" and "collection" in filters:
                params["collection"] = examples.COLLECTION
            if order is not None:
                params["order"] = order
            if last_key is not None:
                params["next_token"] = encode_token({"before": last_key} if order == "newest" else last_key)
            yield ListRequest(path, name, params, headers)


def find_example(schema: dict[str, Any]) -> Any:
    """Return an example of a parameter, or the other one of two choices."""
    for part in (schema, *schema.get("anyOf", [])):
        if "examples" in part:
            return part["examples"][0]
    return True if schema["type"] == "boolean" else schema["enum"][-1]


def find_unused(schema: dict[str, Any]) -> Any:
    """Return a value of a filter that no row has, which is the last one of a choice."""
    value = find_example(schema)
    if isinstance(value, float):
        return value + NO_ROW_SECONDS
    is_choice = any("enum" in part for part in (schema, *schema.get("anyOf", [])))
    return f"{value}-none" if isinstance(value, str) and not is_choice else value


@contextmanager
def record_pages() -> Iterator[list[tuple[str, Any]]]:
    """Record the statements of requests that read a limited number of rows, with their parameters."""
    statements = list[tuple[str, Any]]()

    def record(_: Any, __: Any, statement: str, parameters: Any, *others: Any) -> None:
        if "LIMIT" in statement and threading.current_thread().name.startswith(REQUEST_THREADS):
            statements.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", record)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", record)


def explain(service: Service, statement: str, parameters: Any) -> list[str]:
    """Return the steps of SQLite's plan."""
    with reading(service.resources.database) as session:
        plan = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        return [row.detail for row in plan]


def grow_lists(service: Service, start: int) -> None:
    """Add to the lists of a collection."""
    resources, gallery = service.resources, GalleryWriter(service.resources, examples.COLLECTION)
    rows, names = people(ADDED_ROWS, 2)
    gallery.add({MODEL.id: rows}, [f"{name}-{start}" if n % 2 else None for n, name in enumerate(names)])
    of_collection = {"collection_id": examples.COLLECTION}
    collection = {"collection": examples.COLLECTION}
    numbers = range(start, start + ADDED_ROWS)
    with writing(resources.database) as session:
        add = partial(_add_rows, session)
        clusters = add(FaceCluster, [of_collection | {"probability": 1.0} for _ in numbers], FaceCluster.pk)
        nameless = gallery.pks[::2]
        add(ClusteredFace, [{"face_pk": pk, "cluster_pk": c} for pk, c in zip(nameless, clusters, strict=True)])
        add(Label, [{"task": "identity", "face_a": pk, "face_b": pk + 1, "same": True, "by": "kim"} for pk in nameless])
        add(Job, [{"kind": "import", "body": collection, "state": "succeeded"} for _ in numbers])
        add(JobItem, [{"job_id": examples.JOB, "number": n, "name": "a"} for n in numbers])
        add(KeptSnapshot, [of_collection | {"finished_at": 1.0} for _ in numbers])
        add(Erasure, [of_collection | ERASURE for _ in numbers])
        add(Training, [{"request": collection} for _ in numbers])
        add(Evaluation, [{"request": collection} for _ in numbers])
        resources.audit_chain.append(
            session, (EntryDraft.make("face.delete", key_id="k", collection=examples.COLLECTION) for _ in numbers)
        )


def _add_rows(session: Session, row: type[Base], values: list[dict[str, Any]], *returned: Any) -> list[Any]:
    if returned:
        return list(session.scalars(insert(row).returning(*returned), values))
    session.execute(insert(row), values)
    return []


@contextmanager
def count_steps() -> Iterator[list[int]]:
    """Count the steps that SQLite takes for requests, in tens."""
    steps = [0]

    def count() -> int:
        steps[0] += threading.current_thread().name.startswith(REQUEST_THREADS)
        return 0

    def observe(_: Any, cursor: Any, *others: Any) -> None:
        cursor.connection.set_progress_handler(count, 10)

    event.listen(Engine, "before_cursor_execute", observe)
    try:
        yield steps
    finally:
        event.remove(Engine, "before_cursor_execute", observe)


class CountingTurns:
    """Turns of requests that read whole collections: as many as wanted, and how many were taken."""

    def __init__(self) -> None:
        self.count = 0

    def acquire(self, timeout: float) -> bool:
        self.count += 1
        return True

    def release(self) -> None:
        pass


def measure_lists(service: Service, bound: dict[str, str], turns: CountingTurns) -> dict[tuple[Any, ...], int]:
    """Return the steps that a page of each list takes, for an unbound key and for one that is bound.

    Left out are filters for which a page takes a turn, and those that name a row that does not exist.
    """
    counts = {}
    for request in (*iterate_requests({}, find_unused), *iterate_requests(bound, find_unused)):
        if (request.path, bool(request.headers)) not in GROWING_LISTS:
            taken = turns.count
            with count_steps() as steps:
                answer = request.send(service, limit=5)
            if answer.status_code == 200 and (request.filter_name is None or turns.count == taken):
                counts[request.path, str(request.params), bool(request.headers)] = steps[0]
    return counts


def test_a_page_of_a_longer_list_takes_no_more_steps(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it takes a turn, so that no more pages than there are cores are looked for at once."""
    turns, bound = CountingTurns(), service.key("admin", examples.COLLECTION)
    monkeypatch.setattr(statement_limits, "TURNS", turns)
    grow_lists(service, 0)
    before = measure_lists(service, bound, turns)
    grow_lists(service, ADDED_ROWS)
    after = measure_lists(service, bound, turns)
    assert {page: (before[page], steps) for page, steps in after.items() if steps > 1.2 * before[page] + 20} == {}


def test_no_page_of_a_list_is_sorted(service: Service) -> None:
    read_lists, sorted_lists = set(), []
    for request in [*iterate_requests({}), *iterate_requests(service.key("admin", examples.COLLECTION))]:
        with record_pages() as statements:
            request.send(service)
        plans = [explain(service, *statement) for statement in statements]
        if plans:
            read_lists.add(request.path)
        if any("FOR ORDER BY" in step for plan in plans for step in plan) and request[:2] not in SORTED_LISTS:
            sorted_lists.append((*request[:3], plans))
    assert sorted_lists == []
    assert len(read_lists) > 12, "the statements of lists are recorded"
