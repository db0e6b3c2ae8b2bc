"""Faces have a source, and deployments compensate for it."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("faces", sa.Column("source", sa.String(64), nullable=True))
    op.create_index("faces_of_a_source", "faces", ["collection_id", "source"])
    op.create_table(
        "source_compensations",
        sa.Column("collection_id", sa.String(255), sa.ForeignKey("collections.id", ondelete="CASCADE"), nullable=False),
        sa.Column("task", sa.String(64), nullable=False),
        sa.Column("model_id", sa.String(64), sa.ForeignKey("models.id", ondelete="CASCADE"), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("decisions", sa.JSON(), nullable=False),
        sa.Column("faces", sa.JSON(), nullable=False),
        sa.Column("measured_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("collection_id", "task", "model_id"),
    )


def downgrade() -> None:
    op.drop_table("source_compensations")
    op.drop_index("faces_of_a_source", "faces")
    op.drop_column("faces", "source")
