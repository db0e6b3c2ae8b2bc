"""The snapshots that the service keeps in its home."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "snapshots",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("collection_id", sa.String(255)),
        sa.Column("job_id", sa.String(64)),
        sa.Column("faces", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.Column("erased_at", sa.Double()),
    )
    op.create_index("ix_snapshots_collection_id", "snapshots", ["collection_id"])


def downgrade() -> None:
    op.drop_table("snapshots")
