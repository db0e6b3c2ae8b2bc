"""Clusters of faces without a name, their faces, and the last search for people in each collection."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "face_clusters",
        sa.Column("pk", BIG_ID, primary_key=True),
        sa.Column("collection_id", sa.String(255), sa.ForeignKey("collections.id", ondelete="CASCADE"), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("probability", sa.Double(), nullable=False),
        sa.Column("suggested_subject_pk", BIG_ID, sa.ForeignKey("subjects.pk", ondelete="SET NULL")),
        sa.Column("edited_at", sa.Double()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_face_clusters_collection_id", "face_clusters", ["collection_id"])
    op.create_index("ix_face_clusters_suggested_subject_pk", "face_clusters", ["suggested_subject_pk"])
    op.create_table(
        "clustered_faces",
        sa.Column(
            "face_pk", BIG_ID, sa.ForeignKey("faces.pk", ondelete="CASCADE"), primary_key=True, autoincrement=False
        ),
        sa.Column("cluster_pk", BIG_ID, sa.ForeignKey("face_clusters.pk", ondelete="CASCADE"), nullable=False),
    )
    op.create_index("ix_clustered_faces_cluster_pk", "clustered_faces", ["cluster_pk"])
    op.create_table(
        "people_searches",
        sa.Column(
            "collection_id", sa.String(255), sa.ForeignKey("collections.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("model_id", sa.String(64), nullable=False),
        sa.Column("min_probability", sa.Double(), nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    for table in ("people_searches", "clustered_faces", "face_clusters"):
        op.drop_table(table)
