"""Report whether this process serves what the tables hold, and which versions it runs."""

import platform
import time
from collections import Counter
from importlib.metadata import PackageNotFoundError, version

import faiss
from sqlalchemy import select

from app.db.failures import find_write_fault
from app.db.session import snapshot
from app.db.tables import Collection, Deployment
from app.deps.caller import Caller
from app.health.schemas import DefaultRecogniserOut, InfoOut, LoadedOut
from app.serving import index_builder
from app.serving.deployments import ServedDeployment
from app.serving.engine import Engine
from app.serving.loaded_index import IndexState, LoadedIndex

MAX_SILENCE_SECONDS = 30.0
RECOMPARE_SECONDS = 1.0
MAX_RECOMPARED = 20
"""So many indexes that have not changed are compared again at once, since there may be thousands."""
CHAMPION_DAMAGED = (
    "the stored files of the champion are damaged: restore them from a backup, or publish another model; the log and "
    "the deployment name it"
)


def list_unready_reasons(engine: Engine) -> list[str]:
    """List the reasons why this process cannot serve everything yet; the list is empty if it can.

    They count deployments and name none, since anybody may ask. For a deployment, faces, embeddings and the ids of
    the index are counted in one snapshot after each change, and again from time to time. An index that matched its
    table before and is a few changes behind is ready.
    Raises OperationalError or Busy if the database cannot be reached.
    """
    fault = engine.resources.home.find_fault() or engine.resources.home.find_write_fault()
    if fault is not None:
        return [fault]
    served = {(s.collection, s.task): (s.champion, s.champion.state) for s in engine.list_deployments()}
    unchecked = {(s.collection, s.task) for s in engine.list_deployments() if _is_unchecked(s)}
    reasons, compared = list[str](), list[tuple[LoadedIndex, IndexState]]()
    rows = select(Deployment.collection_id, Deployment.task, Deployment.champion, Collection.change)
    with snapshot(engine.resources.database) as session:
        fault = find_write_fault(session)
        if fault is not None:
            return [fault]
        for collection, task, champion, change in session.execute(
            rows.join(Collection, Collection.id == Deployment.collection_id)
        ).all():
            entry = served.get((collection, task))
            if engine.resources.models.find_damage(champion) is not None:
                reasons.append(CHAMPION_DAMAGED)
            elif entry is None:
                reasons += ["not loaded yet"] if change else []  # without a change there is no face to be found
            elif (collection, task) in unchecked:
                reasons.append("the threshold is being checked")
            elif entry[1].change != change:
                reasons += _report_lag(engine, entry[0], change - entry[1].change)
            else:
                compared.append(entry)
        for index, state in _choose_due(compared):
            reasons += _compare_counts(index, state, index_builder.count_rows(session, index.key))
    return [f"deployments: {count}, {reason}" for reason, count in Counter(reasons).items()]


def _is_unchecked(served: ServedDeployment) -> bool:
    return served.find_validity(served.champion.key.model_id).is_unchecked


def _choose_due(indexes: list[tuple[LoadedIndex, IndexState]]) -> list[tuple[LoadedIndex, IndexState]]:
    """Choose the indexes whose rows are to be counted: all that did not match since their last change, and of the
    others some that were compared the longest ago."""
    due, others = list[tuple[LoadedIndex, IndexState]](), list[tuple[LoadedIndex, IndexState]]()
    for index, state in indexes:
        is_known = index.matches_table and index.compared_change == state.change and not index.comparison_due
        (others if is_known else due).append((index, state))
    latest = time.monotonic() - RECOMPARE_SECONDS
    others = [entry for entry in others if entry[0].compared_at < latest]
    return due + sorted(others, key=lambda entry: entry[0].compared_at)[:MAX_RECOMPARED]


def _report_lag(engine: Engine, index: LoadedIndex, changes: int) -> list[str]:
    if not index.matches_table:
        return [f"{changes} changes behind, and not yet compared with its table"]
    silence_seconds = time.monotonic() - engine.follower.last_step_at
    if silence_seconds <= MAX_SILENCE_SECONDS:
        return []
    return [f"{changes} changes behind for {silence_seconds:.0f} s"]


def _compare_counts(index: LoadedIndex, state: IndexState, counts: tuple[int, int]) -> list[str]:
    rows, vectors = counts
    if rows == vectors == state.vectors:
        index.note_comparison(True, state.change)
        return []
    index.comparison_due = True
    return [f"{rows} rows, {vectors} vectors, {state.vectors} ids"]


def describe_process(engine: Engine, caller: Caller) -> InfoOut:
    """Describe versions, settings, and the deployments of the collections that the caller may see."""
    settings, default = engine.resources.settings, engine.resources.default_recogniser
    visible = [s for s in engine.list_deployments() if not caller.collections or s.collection in caller.collections]
    return InfoOut(
        version=_get_version(),
        python=platform.python_version(),
        faiss=faiss.__version__,
        database=engine.resources.database.dialect.name,
        detector=settings.detector,
        index_device=settings.index_device,
        recogniser=DefaultRecogniserOut(
            name=default.name,
            model=default.model_id,
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
                model=s.champion.key.model_id,
                version=s.version,
                change=s.champion.state.change,
                vectors=s.champion.state.vectors,
                cells=s.champion.index.cells,
                held=sorted(s.indexes),
            )
            for s in visible
        ],
    )


def _get_version() -> str:
    try:
        return version("likeness")
    except PackageNotFoundError:
        return "unknown"
