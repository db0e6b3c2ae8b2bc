"""The latest of the stored answers, and those that are a day old, are found by an index."""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("answers_by_age", "answers", ["created_at"])


def downgrade() -> None:
    op.drop_index("answers_by_age", "answers")
