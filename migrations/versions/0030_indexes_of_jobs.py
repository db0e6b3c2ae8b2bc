"""Live jobs of a lock, and the reports of a collection, are found by indexes, however many jobs have ended."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

REPORT_KINDS = ("examine", "forecast")
JOBS = sa.table(
    "jobs",
    sa.column("kind", sa.String),
    sa.column("body", sa.JSON),
    sa.column("collection_id", sa.String),
    sa.column("report_number", sa.Integer),
)


def upgrade() -> None:
    op.add_column("jobs", sa.Column("report_number", sa.Integer(), nullable=True))
    of_report = {
        "report_number": sa.func.coalesce(JOBS.c.body["number"].as_integer(), 0),
        "collection_id": JOBS.c.body["collection"].as_string(),
    }
    op.execute(sa.update(JOBS).where(JOBS.c.kind.in_(REPORT_KINDS)).values(of_report))
    is_report = sa.text("report_number IS NOT NULL")
    columns = ["collection_id", "kind", "state", "report_number"]
    op.create_index("reports_of_a_collection", "jobs", columns, sqlite_where=is_report, postgresql_where=is_report)
    op.create_index("jobs_of_a_lock", "jobs", ["lock", "state", "id"])
    op.drop_index("ix_jobs_lock", "jobs")


def downgrade() -> None:
    op.create_index("ix_jobs_lock", "jobs", ["lock"])
    op.drop_index("jobs_of_a_lock", "jobs")
    op.drop_index("reports_of_a_collection", "jobs")
    op.drop_column("jobs", "report_number")
