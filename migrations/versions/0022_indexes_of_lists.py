"""Lists are read page by page in the order of an index."""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

ADDED = (
    ("faces_of_a_collection", "faces", ["collection_id", "pk"]),
    ("face_clusters_of_a_collection", "face_clusters", ["collection_id", "pk"]),
    ("labels_of_a_task", "labels", ["task", "pk"]),
    ("parts_of_a_job", "jobs", ["parent_id", "id"]),
    ("erasures_of_a_collection", "erasures", ["collection_id", "id"]),
    ("snapshots_of_a_collection", "snapshots", ["collection_id", "id"]),
)
REPLACED = (
    ("ix_face_clusters_collection_id", "face_clusters", ["collection_id"]),
    ("ix_jobs_parent_id", "jobs", ["parent_id"]),
    ("ix_erasures_collection_id", "erasures", ["collection_id"]),
    ("ix_snapshots_collection_id", "snapshots", ["collection_id"]),
)


def upgrade() -> None:
    for name, table, columns in ADDED:
        op.create_index(name, table, columns)
    for name, table, _ in REPLACED:
        op.drop_index(name, table)


def downgrade() -> None:
    for name, table, columns in REPLACED:
        op.create_index(name, table, columns)
    for name, table, _ in ADDED:
        op.drop_index(name, table)
