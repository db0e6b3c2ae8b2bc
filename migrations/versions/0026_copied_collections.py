"""A collection that was restored under another name says of which it is a copy."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("collections", sa.Column("copied_from", sa.JSON, nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("collections", "copied_from")
