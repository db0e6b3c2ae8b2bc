"""Collections know the change after which all their labels have to be read anew."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("label_reread_change", sa.BigInteger(), nullable=False, server_default="0")
    op.add_column("collections", column)


def downgrade() -> None:
    op.drop_column("collections", "label_reread_change")
