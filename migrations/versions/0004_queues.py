"""Jobs name their queue, `default` or `training`, instead of a lane, `work` or `train`."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column("jobs", "lane", new_column_name="queue")
    op.execute("UPDATE jobs SET queue = CASE queue WHEN 'train' THEN 'training' ELSE 'default' END")


def downgrade() -> None:
    op.execute("UPDATE jobs SET queue = CASE queue WHEN 'training' THEN 'train' ELSE 'work' END")
    op.alter_column("jobs", "queue", new_column_name="lane")
