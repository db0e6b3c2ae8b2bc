"""A home knows each server of PostgreSQL again by a token that it leaves there."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "server_tokens",
        sa.Column("token", sa.String(32), primary_key=True),
        sa.Column("created_at", sa.Double, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("server_tokens")
