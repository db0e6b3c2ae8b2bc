"""The share of searches that challengers answer too, and how their answers compare."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

COUNTS_BEFORE_OVERLAP = (
    "compared", "same_first", "decided", "same_decision", "named_by_both", "named_differently",
    "named_by_champion_only", "named_by_challenger_only",
)  # fmt: skip
COUNTS_AT_THE_END = ("labels", "broken_labels", "mended_labels", "vectors", "not_ready", "failed", "dropped")


def upgrade() -> None:
    with op.batch_alter_table("deployments") as batch:
        batch.add_column(sa.Column("shadow_share", sa.Double(), nullable=False, server_default="0"))
    op.create_table(
        "shadow_totals",
        sa.Column(
            "collection_id", sa.String(255), sa.ForeignKey("collections.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("task", sa.String(64), primary_key=True),
        sa.Column("champion", sa.String(64), sa.ForeignKey("models.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("challenger", sa.String(64), sa.ForeignKey("models.id", ondelete="CASCADE"), primary_key=True),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTS_BEFORE_OVERLAP),
        sa.Column("overlap", sa.Double(), nullable=False),
        sa.Column("overlap_squares", sa.Double(), nullable=False),
        sa.Column("probabilities", sa.BigInteger(), nullable=False),
        sa.Column("probability_difference", sa.Double(), nullable=False),
        sa.Column("probability_difference_squares", sa.Double(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTS_AT_THE_END),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("shadow_totals")
    with op.batch_alter_table("deployments") as batch:
        batch.drop_column("shadow_share")
