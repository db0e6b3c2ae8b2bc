"""The benchmark of the audit log measures searches that are recorded, and such that are not."""

import asyncio
from pathlib import Path

import numpy as np
from sqlalchemy import func, select

from app.db.session import close_database, open_database, reading
from app.db.tables import AuditEntry
from benchmarks.audit import describe_cost, make_searcher


def test_half_of_the_measured_searches_are_recorded(tmp_path: Path) -> None:
    searcher = make_searcher(tmp_path)
    milliseconds = asyncio.run(searcher.measure(5))
    assert milliseconds.shape == (5, 2)
    assert (milliseconds > 0).all()
    database = open_database(searcher.settings.database, searcher.settings.home)
    with reading(database) as session:
        recorded = select(func.count()).where(AuditEntry.action == "search.vector", AuditEntry.status == 200)
        assert session.scalar(recorded) == 6, "5, and the one that finds the index ready"
    close_database(database)


def test_the_cost_is_the_median_of_the_differences() -> None:
    milliseconds = np.array([[2.0, 1.5], [3.0, 2.5], [9.0, 1.0]])
    assert "median of the differences 0.5000 ms" in describe_cost(milliseconds)
