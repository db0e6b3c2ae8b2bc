"""Jobs name the collection whose turn they take in their queue."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("collection_id", sa.String(255), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "collection_id")
