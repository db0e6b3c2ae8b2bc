"""What the gate does with a candidate that breaks labels, for each deployment."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("deployments") as batch:
        batch.add_column(sa.Column("label_policy", sa.String(16), nullable=False, server_default="list"))


def downgrade() -> None:
    with op.batch_alter_table("deployments") as batch:
        batch.drop_column("label_policy")
