"""Is what is served what the tables say?"""

import platform
import time
from importlib.metadata import PackageNotFoundError, version

import faiss
from sqlalchemy import select

from app.db.session import snapshot
from app.db.tables import Collection, Deployment
from app.deps.caller import Caller
from app.health.schemas import DefaultRecogniserOut, InfoOut, LoadedOut
from app.serving import index_builder
from app.serving.engine import Engine
from app.serving.loaded_index import Held, Standing

SILENT_SECONDS = 30.0


def unready(engine: Engine) -> list[str]:
    """Why this process cannot serve everything yet; empty where it can.

    Of each deployment rows, vectors and ids are counted at one moment. An index that agreed once and is a few changes
    behind, as it always is while faces arrive, is ready. Raises OperationalError where the database is away.
    """
    standing = {(s.collection, s.task): (s.champion, s.champion.standing) for s in engine.all()}
    reasons = []
    told = select(Deployment.collection_id, Deployment.task, Collection.change)
    with snapshot(engine.resources.database) as session:
        for collection, task, change in session.execute(
            told.join(Collection, Collection.id == Deployment.collection_id)
        ).all():
            where = f"collection {collection!r}, task {task!r}"
            here = standing.get((collection, task))
            if here is None:
                reasons.append(f"{where}: not loaded yet")
            elif here[1].change != change:
                reasons += _behind(engine, where, here[0], change - here[1].change)
            else:
                reasons += _compared(where, *here, index_builder.counts(session, here[0].place))
    return reasons


def _behind(engine: Engine, where: str, held: Held, changes: int) -> list[str]:
    if not held.agreed:
        return [f"{where}: {changes} changes behind, and not yet compared with its table"]
    silent = time.monotonic() - engine.follower.stepped_at
    return [f"{where}: {changes} changes behind for {silent:.0f} s"] if silent > SILENT_SECONDS else []


def _compared(where: str, held: Held, standing: Standing, counted: tuple[int, int]) -> list[str]:
    rows, vectors = counted
    if rows == vectors == standing.vectors:
        held.agreed = True
        return []
    held.suspected = True
    return [f"{where}: {rows} rows, {vectors} vectors, {standing.vectors} ids"]


def info(engine: Engine, caller: Caller) -> InfoOut:
    """Versions, and what is loaded of the collections that the caller may see."""
    settings, default = engine.resources.settings, engine.resources.default_recogniser
    shown = [s for s in engine.all() if not caller.collections or s.collection in caller.collections]
    return InfoOut(
        version=_version(),
        python=platform.python_version(),
        faiss=faiss.__version__,
        database=engine.resources.database.dialect.name,
        detector=settings.detector,
        index_device=settings.index_device,
        recogniser=DefaultRecogniserOut(
            name=default.name,
            model=default.model,
            right_first=default.right_first,
            notice=default.notice,
            mend=default.mend,
        ),
        slots=settings.slots,
        process=engine.follower.process,
        deployments=[
            LoadedOut(
                collection=s.collection,
                task=s.task,
                model=s.champion.place.generation,
                version=s.version,
                change=s.champion.standing.change,
                vectors=s.champion.standing.vectors,
                cells=s.champion.index.cells,
                held=sorted(s.held),
            )
            for s in shown
        ],
    )


def _version() -> str:
    try:
        return version("likeness")
    except PackageNotFoundError:
        return "unknown"
