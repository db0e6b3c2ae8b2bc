"""A default rate of strangers named for each deployment."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("deployments") as batch:
        batch.add_column(sa.Column("default_fpir", sa.Double(), nullable=False, server_default="0.01"))


def downgrade() -> None:
    with op.batch_alter_table("deployments") as batch:
        batch.drop_column("default_fpir")
