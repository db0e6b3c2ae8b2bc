"""Start the drawing of an atlas, and read it."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Response
from sqlalchemy import ColumnElement, Integer, cast, delete, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.atlases.schemas import AtlasOut, DensityOut, DrawIn, NeighboursOut, PointOut, PointsOut
from app.atlases.window import WindowEdges, find_bounds, resolve_window, select_faces_in
from app.db.id_lists import select_ids
from app.db.lookups import get_collection
from app.db.statement_limits import wait_for_turn
from app.db.tables import Atlas, ClusteredFace, Face, FaceCoordinates, StoredCompensation, Subject, now
from app.db.visibility import ALL_ROWS
from app.deps.job_response import JobOut, point_to_job
from app.deps.shared_schemas import SubjectRef
from app.errors import NotFound
from app.galleries.retention import may_be_used
from app.publishing import pointers
from app.queue.jobs import enqueue
from app.queue.messages import DrawAtlas
from ml.atlas import require_tsne


def start_drawing(session: Session, collection: str, task: str, body: DrawIn, response: Response) -> JobOut:
    """Enqueue the drawing of an atlas. Raises NotFound, or ml.Unavailable if the method's package is missing."""
    get_collection(session, collection)
    pointers.get_deployment(session, collection, task)
    if body.method == "tsne":
        require_tsne()
    job = enqueue(session, DrawAtlas(collection=collection, task=task, method=body.method, seed=body.seed))
    point_to_job(response, job)
    return JobOut.of(job)


def describe_atlas(session: Session, collection: str, task: str) -> AtlasOut:
    """Describe the atlas that is shown. Raises NotFound, Busy."""
    with wait_for_turn(session):
        atlas = _get_atlas(session, collection, task)
        faces = session.scalar(select(func.count()).where(FaceCoordinates.atlas_pk == atlas.pk)) or 0
        bounds = find_bounds(session, atlas)
    return AtlasOut(
        collection=collection,
        task=task,
        model=atlas.model_id,
        version=atlas.version,
        method="pca" if atlas.method == "pca" else "tsne",
        seed=atlas.seed,
        faces=faces,
        bounds=bounds,
        explained_variance=atlas.measurements["explained_variance"],
        neighbours=NeighboursOut(**atlas.measurements["neighbours"]),
        is_current=_is_current(session, atlas),
        finished_at=atlas.finished_at or 0.0,
    )


def count_faces(session: Session, collection: str, task: str, edges: WindowEdges, bins: int) -> DensityOut:
    """Count the faces of a window in bins x bins cells. Raises NotFound, Invalid, Busy."""
    with wait_for_turn(session):
        return _count_faces(session, _get_atlas(session, collection, task), edges, bins)


def _count_faces(session: Session, atlas: Atlas, edges: WindowEdges, bins: int) -> DensityOut:
    window = resolve_window(session, atlas, edges)
    column = _number_cells(session, FaceCoordinates.x, window.x_min, window.x_max, bins)
    row = _number_cells(session, FaceCoordinates.y, window.y_min, window.y_max, bins)
    cells = select(column.label("number_x"), row.label("number_y")).where(*select_faces_in(atlas, window)).subquery()
    counted = select(cells.c.number_x, cells.c.number_y, func.count()).group_by(cells.c.number_x, cells.c.number_y)
    counts = [[0] * bins for _ in range(bins)]
    for x, y, count in session.execute(counted):
        counts[min(y, bins - 1)][min(x, bins - 1)] += count  # faces on the upper edge belong to the last cell
    return DensityOut(window=window, faces=sum(map(sum, counts)), counts=counts)


def list_points(session: Session, collection: str, task: str, edges: WindowEdges, limit: int) -> PointsOut:
    """List at most `limit` faces of a window that may be used. Raises NotFound, Invalid, Busy."""
    with wait_for_turn(session):
        atlas = _get_atlas(session, collection, task)
        window = resolve_window(session, atlas, edges)
        inside = select_faces_in(atlas, window)
        faces = session.scalar(select(func.count()).select_from(FaceCoordinates).where(*inside)) or 0
        coordinates = _read_coordinates(session, inside, limit)
        session.rollback()  # to find all faces of the window may take seconds: who may be named is read after it
        get_collection(session, collection)
        return PointsOut(window=window, faces=faces, points=_read_points(session, coordinates))


def _read_coordinates(
    session: Session, inside: Sequence[ColumnElement[bool]], limit: int
) -> dict[int, tuple[float, float]]:
    """Return face pk -> its coordinates, of the first `limit` faces that may be used, in the order of their ranks."""
    coordinates = (
        select(FaceCoordinates.face_pk, FaceCoordinates.x, FaceCoordinates.y)
        .join(Face, Face.pk == FaceCoordinates.face_pk)
        .outerjoin(Subject, Subject.pk == Face.subject_pk)
        .where(*inside, may_be_used(now()))
        .order_by(FaceCoordinates.display_rank, FaceCoordinates.face_pk)
        .limit(limit)
    )
    return {pk: (x, y) for pk, x, y in session.execute(coordinates)}


def _read_points(session: Session, coordinates: Mapping[int, tuple[float, float]]) -> list[PointOut]:
    """Describe those of these faces that may be used, in their order. coordinates: face pk -> its coordinates"""
    shown = Face.pk, Face.face_id, Face.role, Face.source, Subject.id, Subject.external_id, ClusteredFace.cluster_pk
    named = (
        select(*shown)
        .outerjoin(Subject, Subject.pk == Face.subject_pk)
        .outerjoin(ClusteredFace, ClusteredFace.face_pk == Face.pk)
        .where(Face.pk.in_(select_ids(session, list(coordinates))), may_be_used(now()))
    )
    # the session saw them already; restricted to their collection, SQLite would read all of its faces
    rows = {row.pk: row for row in session.execute(named, execution_options=ALL_ROWS)}
    return [_describe_point(*coordinates[pk], rows[pk]) for pk in coordinates if pk in rows]


def delete_atlas(session: Session, collection: str, task: str) -> None:
    """Delete every atlas of a deployment, also one that is being drawn. Raises NotFound if none is shown."""
    pointers.lock_collection(session, collection)
    _get_atlas(session, collection, task)
    session.execute(delete(Atlas).where(Atlas.collection_id == collection, Atlas.task == task))


def _get_atlas(session: Session, collection: str, task: str) -> Atlas:
    get_collection(session, collection)
    pointers.get_deployment(session, collection, task)
    atlases = select(Atlas).where(Atlas.collection_id == collection, Atlas.task == task, Atlas.finished_at.is_not(None))
    atlas = session.scalar(atlases.order_by(Atlas.pk.desc()).limit(1))
    if atlas is None:
        raise NotFound(f"no atlas of the task {task!r} was drawn in collection {collection!r}")
    return atlas


def _is_current(session: Session, atlas: Atlas) -> bool:
    deployment = pointers.get_deployment(session, atlas.collection_id, atlas.task)
    compensation = session.get(StoredCompensation, (atlas.collection_id, atlas.task, deployment.champion))
    return (
        atlas.model_id == deployment.champion
        and atlas.compensation == (compensation.version if compensation else 0)
        and atlas.change == get_collection(session, atlas.collection_id).change
    )


def _number_cells(
    session: Session, column: InstrumentedAttribute[float], low: float, high: float, bins: int
) -> ColumnElement[int]:
    """Return the number of the cell that holds a coordinate, which is not less than `low`."""
    scaled = (column - low) * (bins / ((high - low) or 1.0))
    # SQLite cuts the fraction off, and may lack floor(); PostgreSQL rounds
    return cast(scaled if session.get_bind().dialect.name == "sqlite" else func.floor(scaled), Integer)


def _describe_point(x: float, y: float, row: Any) -> PointOut:
    """row: of `_read_points`"""
    return PointOut(
        face_id=row.face_id,
        x=x,
        y=y,
        role="distractor" if row.role == "distractor" else "gallery",
        source=row.source,
        subject=None if row.id is None else SubjectRef(id=row.id, external_id=row.external_id),
        cluster=row.cluster_pk if row.id is None and row.role == "gallery" else None,
    )
