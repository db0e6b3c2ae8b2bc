"""Collections of imported vectors name the model that compares them."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("collections", sa.Column("external_model", sa.String(64), nullable=True))


def downgrade() -> None:
    op.drop_column("collections", "external_model")
