"""The audit log, and keys that expire and are rotated."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("number", BIG_ID, primary_key=True, autoincrement=False),
        sa.Column("id", sa.String(64), nullable=False, unique=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64)),
        sa.Column("address", sa.String(64)),
        sa.Column("collection_id", sa.String(255)),
        sa.Column("resource", sa.String(255)),
        sa.Column("status", sa.Integer()),
        sa.Column("mac", sa.String(64), nullable=False),
    )
    op.create_index("audit_entries_of_collection", "audit_entries", ["collection_id", "number"])
    op.create_table(
        "audit_heads",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("number", BIG_ID, nullable=False),
        sa.Column("mac", sa.String(64), nullable=False),
        sa.Column("cut_number", BIG_ID, nullable=False),
        sa.Column("cut_mac", sa.String(64), nullable=False),
        sa.Column("signature", sa.String(64), nullable=False),
    )
    with op.batch_alter_table("keys") as batch:
        batch.add_column(sa.Column("expires_at", sa.Double()))
        batch.add_column(sa.Column("previous_digest", sa.String(64)))
        batch.add_column(sa.Column("previous_until", sa.Double()))
        batch.create_index("keys_of_previous_secrets", ["previous_digest"])


def downgrade() -> None:
    with op.batch_alter_table("keys") as batch:
        batch.drop_index("keys_of_previous_secrets")
        for column in ("expires_at", "previous_digest", "previous_until"):
            batch.drop_column(column)
    op.drop_table("audit_heads")
    op.drop_table("audit_entries")
