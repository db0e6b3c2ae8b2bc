"""What this process tells the others: which change of which deployment it serves."""

import time
from collections.abc import Iterable

from sqlalchemy import Engine, delete, select, update

from app.db.session import writing
from app.db.tables import Collection, Follower, now
from app.serving.deployments import Key, Served

BEAT_SECONDS = 3.0
ALIVE_SECONDS = 15.0
"""A follower that has been silent for longer than this is not counted: its process was killed."""

Line = tuple[str, int, int]  # generation, change, vectors


class Reporter:
    """Writes rows of `followers` when they have changed, and now and then that it is still there."""

    def __init__(self, database: Engine, process: str) -> None:
        self.database, self.process = database, process
        self._told: dict[Key, Line] = {}
        self._beaten_at = time.monotonic()

    def report(self, all_served: Iterable[Served]) -> None:
        """Raises Busy."""
        lines = {(s.collection, s.task): _line(s) for s in all_served}
        changed = {key: line for key, line in lines.items() if self._told.get(key) != line}
        beat = time.monotonic() - self._beaten_at > BEAT_SECONDS
        if not changed and not beat and lines.keys() == self._told.keys():
            return
        with writing(self.database) as session:
            mine = Follower.process == self.process
            for collection, task in self._told.keys() - lines.keys():
                session.execute(
                    delete(Follower).where(mine, Follower.collection_id == collection, Follower.task == task)
                )
            there = set(session.scalars(select(Collection.id).where(Collection.id.in_({c for c, _ in changed}))))
            for (collection, task), (generation, change, vectors) in changed.items():
                if collection in there:
                    row = Follower(process=self.process, collection_id=collection, task=task, generation_id=generation)
                    row.change, row.vectors, row.seen_at = change, vectors, now()
                    session.merge(row)
            session.flush()
            seen = update(Follower).where(mine).values(seen_at=now()).returning(Follower.task)
            there_still = len(session.scalars(seen).all())
        # a sweep may have taken us for dead: then all of it is written again
        self._told = lines if there_still == len(lines) else {}
        self._beaten_at = time.monotonic()

    def sign_off(self) -> None:
        with writing(self.database) as session:
            session.execute(delete(Follower).where(Follower.process == self.process))


def _line(served: Served) -> Line:
    champion = served.champion
    return champion.place.generation, champion.standing.change, champion.standing.vectors
