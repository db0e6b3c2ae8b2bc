"""A subject says which others were merged into it, so that their names are erased with it."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("subjects", sa.Column("merged_subjects", sa.JSON, nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("subjects", "merged_subjects")
