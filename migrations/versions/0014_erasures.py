"""Erasures and their receipts, and the collection of a stored answer."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "erasures",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("collection_id", sa.String(255), nullable=False),
        sa.Column("collection_created_at", sa.Double(), nullable=False),
        sa.Column("target", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.Column("first_change", sa.BigInteger(), nullable=False),
        sa.Column("targets", sa.JSON(), nullable=False),
        sa.Column("contents", sa.JSON(), nullable=False),
        sa.Column("fingerprints", sa.JSON(), nullable=False),
        sa.Column("signature", sa.String(64), nullable=False),
        sa.Column("requested_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
    )
    op.create_index("ix_erasures_collection_id", "erasures", ["collection_id"])
    op.create_index("ix_erasures_state", "erasures", ["state"])
    op.add_column("answers", sa.Column("collection", sa.String(255)))


def downgrade() -> None:
    op.drop_table("erasures")
    op.drop_column("answers", "collection")
