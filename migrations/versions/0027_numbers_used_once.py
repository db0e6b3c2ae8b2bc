"""The keys of subjects and labels are never used again: SQLite gave that of the last one to the next, once deleted."""

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _make_anew(sqlite_autoincrement=True)


def downgrade() -> None:
    _make_anew(sqlite_autoincrement=False)


def _make_anew(**options: bool) -> None:
    if op.get_bind().dialect.name == "sqlite":
        for table in ("subjects", "labels"):
            with op.batch_alter_table(table, recreate="always", table_kwargs=options):
                pass
