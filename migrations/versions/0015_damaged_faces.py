"""The faces whose stored crops are damaged."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "damaged_faces",
        sa.Column(
            "face_pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            sa.ForeignKey("faces.pk", ondelete="CASCADE"), primary_key=True, autoincrement=False,
        ),
        sa.Column("collection_id", sa.String(255), sa.ForeignKey("collections.id", ondelete="CASCADE"), nullable=False),
        sa.Column("file", sa.String(255), nullable=False),
        sa.Column("reason", sa.String(255), nullable=False),
        sa.Column("found_at", sa.Double(), nullable=False),
    )  # fmt: skip
    op.create_index("ix_damaged_faces_collection_id", "damaged_faces", ["collection_id"])


def downgrade() -> None:
    op.drop_table("damaged_faces")
