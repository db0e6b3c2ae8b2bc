"""Count the work of statements, which does not depend on how fast the machine is."""

from collections.abc import Callable

from sqlalchemy import text
from sqlalchemy.orm import Session

INSTRUCTIONS_PER_STEP = 10
READ_JOBS = text(
    "select coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0) from pg_stat_xact_user_tables "
    "where relname = 'jobs'"
)


def count_work(session: Session, call: Callable[[], object]) -> int:
    """Return how many steps SQLite takes for the statements of a call, or how many rows of jobs PostgreSQL reads."""
    if session.get_bind().dialect.name == "postgresql":
        before = session.scalar(READ_JOBS)
        call()
        return int(session.scalar(READ_JOBS) - before)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    driver = session.connection().connection.driver_connection
    assert driver is not None
    driver.set_progress_handler(count, INSTRUCTIONS_PER_STEP)
    try:
        call()
    finally:
        driver.set_progress_handler(None, 0)
    return steps
