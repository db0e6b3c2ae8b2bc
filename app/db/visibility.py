"""Restrict a session to the rows of some collections: those of the key that a request was sent with.

For the statements of such a session other rows do not exist, so a lookup fails as for an id that was never given.
RULES and UNRESTRICTED together name every table; a test checks that. Tables under an alias are not restricted, since
SQLAlchemy applies such conditions to the joins of an alias under the name of its table: a test lists who uses them.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Engine, and_, event, exists, func, or_, select
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria
from sqlalchemy.orm.util import LoaderCriteriaOption
from sqlalchemy.sql.selectable import NamedFromClause

from app.db.json_names import JsonNames
from app.db.tables import (
    POINTERS,
    AuditEntry,
    AuditHead,
    Base,
    ClusteredFace,
    Collection,
    Deployment,
    Embedding,
    Erasure,
    Evaluation,
    Face,
    FaceCoordinates,
    Job,
    JobItem,
    KeptSnapshot,
    Key,
    Label,
    ModelRecord,
    ServerToken,
    StoredResponse,
    Task,
    Training,
)

ALL_ROWS = {"all_rows": True}
"""The execution options of a statement that must see the rows of all collections."""
MAX_CACHED_OPTIONS = 256
EVALUATE = "evaluate"
"""The kind of the jobs of evaluations."""
EXTERNAL_MODELS = "external-"
"""How the ids of the models of imported vectors begin. Trained models begin otherwise, and others are built in."""
UNRESTRICTED: dict[type[Base], str] = {
    Task: "a criterion belongs to the whole installation",
    Embedding: "read only by the key of a face",
    FaceCoordinates: "read only by the key of an atlas",
    AuditHead: "belongs to the whole installation; routes read only where the audit log begins",
    ServerToken: "belongs to the whole installation; routes do not read it",
    StoredResponse: "read only by the id of the caller's key",
}
"""Tables whose rows every session sees -> the reason."""


class RestrictedSession(Session):
    """A session that sees only the rows of these collections. Statements with the options ALL_ROWS see all rows."""

    def __init__(self, database: Engine, collections: Sequence[str], **options: Any) -> None:
        super().__init__(database, **options)
        self.restrictions = _make_options(tuple(collections), database.dialect.name)


@event.listens_for(RestrictedSession, "do_orm_execute")
def _restrict(state: ORMExecuteState) -> None:
    session = state.session
    assert isinstance(session, RestrictedSession)
    if not state.is_column_load and not state.execution_options.get("all_rows"):
        state.statement = state.statement.options(*session.restrictions)


@lru_cache(MAX_CACHED_OPTIONS)
def _make_options(collections: tuple[str, ...], dialect: str) -> tuple[LoaderCriteriaOption, ...]:
    rules = {row: _is_of_collection for row in _list_tables() if "collection_id" in row.__table__.columns} | RULES
    names = JsonNames(dialect, collections)
    return tuple(with_loader_criteria(row, rule(row, names)) for row, rule in rules.items())


def list_unruled_tables() -> list[str]:
    """List the tables for which nothing says whose rows they hold."""
    ruled = {row for row in _list_tables() if "collection_id" in row.__table__.columns} | RULES.keys()
    return sorted(row.__tablename__ for row in _list_tables() if row not in ruled | UNRESTRICTED.keys())


def _list_tables() -> list[type[Base]]:
    return [mapper.class_ for mapper in Base.registry.mappers]


def _alias(row: type[Base]) -> NamedFromClause[Any]:
    """Return the table under a name of its own, so that it is not taken for the same table of the statement."""
    return row.__table__.alias(f"visible_{row.__tablename__}")


def _is_of_collection(row: Any, names: JsonNames) -> ColumnElement[bool]:
    return row.collection_id.in_(names.collections)  # type: ignore[no-any-return]


def _is_no_older_than(name: Any, moment: ColumnElement[float]) -> ColumnElement[bool]:
    """Whether no collection of the name was created after this moment: one hides the rows of an earlier one."""
    later = Collection.__table__.alias("visible_creations")
    return ~exists(select(1).where(later.c.id == name, later.c.created_at > moment))


def _is_erasure_of_collection(row: Any, names: JsonNames) -> ColumnElement[bool]:
    return and_(_is_of_collection(row, names), _is_no_older_than(row.collection_id, row.requested_at))


def _is_snapshot_of_collection(row: Any, names: JsonNames) -> ColumnElement[bool]:
    return and_(_is_of_collection(row, names), _is_no_older_than(row.collection_id, row.created_at))


def _is_entry_of_collection(row: Any, names: JsonNames) -> ColumnElement[bool]:
    return and_(_is_of_collection(row, names), _is_no_older_than(row.collection_id, row.at))


def _is_request_of_collection(row: Any, names: JsonNames, column: str) -> ColumnElement[bool]:
    """Whether the collection in a request or message is one of the names, and not a later one of the same name."""
    named = names.extract_text(getattr(row, column), "collection")
    return and_(names.is_named(getattr(row, column), "collection"), _is_no_older_than(named, row.created_at))


def _is_collection(row: Any, names: JsonNames) -> ColumnElement[bool]:
    return row.id.in_(names.collections)  # type: ignore[no-any-return]


def _is_face_of_collection(pk: ColumnElement[int], names: JsonNames, number: int = 0) -> ColumnElement[bool]:
    faces = Face.__table__.alias(f"visible_faces_{number}")
    return exists(select(1).where(faces.c.pk == pk, faces.c.collection_id.in_(names.collections)))


def _is_label_of_collections(row: Any, names: JsonNames) -> ColumnElement[bool]:
    return and_(_is_face_of_collection(row.face_a, names), _is_face_of_collection(row.face_b, names, number=1))


def _is_clustered_in_collection(row: Any, names: JsonNames) -> ColumnElement[bool]:
    return _is_face_of_collection(row.face_pk, names)


def _is_training_of_collections(row: Any, names: JsonNames) -> ColumnElement[bool]:
    """A training belongs to every collection that it reads."""
    return and_(
        _is_request_of_collection(row, names, "request"),
        ~names.has_other_member(row.request, ("sources",), "collection"),
    )


def _is_evaluation_of_collections(row: Any, names: JsonNames) -> ColumnElement[bool]:
    return and_(
        _is_request_of_collection(row, names, "request"),
        ~names.has_other_member(row.request, ("training", "sources"), "collection"),
    )


def _is_job_of_collections(row: Any, names: JsonNames) -> ColumnElement[bool]:
    """A job belongs to the collection in its message; that of a run to those of the run; a part to those of its job.

    Requests for evaluations have megabytes of text. They are read only for jobs that are bound to no collection, which
    an earlier version of the service enqueued.
    """
    trainings, evaluations, parents = (_alias(kind) for kind in (Training, Evaluation, Job))
    hidden = select(trainings.c.job_id).where(
        trainings.c.job_id.is_not(None), ~_is_training_of_collections(trainings.c, names)
    )
    measured = select(evaluations.c.job_id).where(_is_evaluation_of_collections(evaluations.c, names))
    own_parents = select(parents.c.id).where(_is_request_of_collection(parents.c, names, "body"))
    return or_(
        and_(_is_request_of_collection(row, names, "body"), row.id.not_in(hidden)),
        and_(row.kind == EVALUATE, _is_bound_to_collections(row, names)),
        and_(row.kind == EVALUATE, ~exists(names.select_keys(row.body, ("bound_to",))), row.id.in_(measured)),
        row.parent_id.in_(own_parents),
    )


def _is_bound_to_collections(row: Any, names: JsonNames) -> ColumnElement[bool]:
    """Whether a job is bound to collections, all of them of the names, and to no earlier ones of the same names."""
    path = ("bound_to",)
    later = Collection.__table__.alias("visible_creations")
    is_earlier = exists(
        select(1).where(later.c.id.in_(names.select_keys(row.body, path)), later.c.created_at > row.created_at)
    )
    return and_(exists(names.select_keys(row.body, path)), ~names.has_other_key(row.body, path), ~is_earlier)


def _is_item_of_collections(row: Any, names: JsonNames) -> ColumnElement[bool]:
    jobs = _alias(Job)
    own = _is_request_of_collection(jobs.c, names, "body")
    return exists(select(1).where(jobs.c.id == row.job_id, own))


def _is_key_of_collections(row: Any, names: JsonNames) -> ColumnElement[bool]:
    """A key belongs to the collections that it is bound to; one that is not bound belongs to the installation."""
    return and_(func.json_array_length(row.collections) > 0, ~names.has_other_value(row.collections))


def _is_model_of_collections(row: Any, names: JsonNames) -> ColumnElement[bool]:
    """A model belongs to the collections that it has learned from and to those whose deployments name it.

    One that has learned from none, such as a built-in one, can be read by all. One of imported vectors says what makes
    them, and belongs to the collections that hold such vectors.
    """
    deployments, trainings = _alias(Deployment), _alias(Training)
    deployed = (
        select(deployments.c[pointer]).where(
            deployments.c[pointer].is_not(None), deployments.c.collection_id.in_(names.collections)
        )
        for pointer in POINTERS
    )
    trained = select(trainings.c.id).where(_is_training_of_collections(trainings.c, names))
    is_shared = and_(
        row.training_id.is_(None),
        ~names.has_other_key(row.manifest, ("facts", "changes")),
        ~row.id.startswith(EXTERNAL_MODELS),
    )
    collections = _alias(Collection)
    imported = select(collections.c.external_model).where(
        collections.c.external_model.is_not(None), collections.c.id.in_(names.collections)
    )
    named = (row.id.in_(models) for models in (imported, *deployed))
    return or_(is_shared, row.training_id.in_(trained), *named)


RULES: dict[type[Base], Callable[[Any, JsonNames], ColumnElement[bool]]] = {
    Collection: _is_collection,
    Label: _is_label_of_collections,
    ClusteredFace: _is_clustered_in_collection,
    Training: _is_training_of_collections,
    Evaluation: _is_evaluation_of_collections,
    Erasure: _is_erasure_of_collection,
    KeptSnapshot: _is_snapshot_of_collection,
    AuditEntry: _is_entry_of_collection,
    Job: _is_job_of_collections,
    JobItem: _is_item_of_collections,
    Key: _is_key_of_collections,
    ModelRecord: _is_model_of_collections,
}
"""Tables -> which rows belong to the collections. Others with a column `collection_id` belong to that one.

Rows that outlive their collection do not belong to a later one of its name.
"""
