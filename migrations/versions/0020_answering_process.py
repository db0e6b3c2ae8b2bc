"""A reserved Idempotency-Key names the process that answers its request."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("answers", sa.Column("process", sa.String(64), nullable=True))


def downgrade() -> None:
    op.drop_column("answers", "process")
