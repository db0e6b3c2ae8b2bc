"""Collections that had labels before `label_change` existed say so. A follower reads no labels where it is 0."""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    labelled = "select faces.collection_id from labels join faces on faces.pk in (labels.face_a, labels.face_b)"
    op.execute(f"update collections set label_change = 1 where label_change = 0 and id in ({labelled})")


def downgrade() -> None:
    """Keep it: labels may have changed since."""
