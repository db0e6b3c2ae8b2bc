"""Collections know the change at which their labels last changed."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("collections", sa.Column("label_change", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("collections", "label_change")
