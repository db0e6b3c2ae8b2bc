"""Maps of the faces of deployments, and where each face lies on them."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "atlases",
        sa.Column("pk", BIG_ID, primary_key=True),
        sa.Column("collection_id", sa.String(255), sa.ForeignKey("collections.id", ondelete="CASCADE"), nullable=False),
        sa.Column("task", sa.String(64), nullable=False),
        sa.Column("model_id", sa.String(64), sa.ForeignKey("models.id", ondelete="CASCADE"), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("compensation", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(16), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("projection", sa.LargeBinary(), nullable=False),
        sa.Column("measurements", sa.JSON(), nullable=False),
        sa.Column("fitted_faces", sa.Integer(), nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sqlite_autoincrement=True,
    )
    op.create_index("atlases_of_a_deployment", "atlases", ["collection_id", "task"])
    op.create_table(
        "face_coordinates",
        sa.Column("atlas_pk", BIG_ID, sa.ForeignKey("atlases.pk", ondelete="CASCADE"), nullable=False),
        sa.Column("face_pk", BIG_ID, sa.ForeignKey("faces.pk", ondelete="CASCADE"), nullable=False),
        sa.Column("x", sa.Double(), nullable=False),
        sa.Column("y", sa.Double(), nullable=False),
        sa.Column("display_rank", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("atlas_pk", "face_pk"),
    )
    op.create_index("ix_face_coordinates_face_pk", "face_coordinates", ["face_pk"])
    op.create_index("face_coordinates_in_display_order", "face_coordinates", ["atlas_pk", "display_rank"])


def downgrade() -> None:
    for table in ("face_coordinates", "atlases"):
        op.drop_table(table)
