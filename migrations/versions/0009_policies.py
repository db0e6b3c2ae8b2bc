"""How much votes weigh in each deployment, and when it is trained again."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("deployments") as batch:
        batch.add_column(sa.Column("label_weights", sa.String(16), nullable=False, server_default="equal"))
        batch.add_column(sa.Column("label_quorum", sa.Integer(), nullable=False, server_default="1"))
    op.create_table(
        "training_policies",
        sa.Column(
            "collection_id", sa.String(255), sa.ForeignKey("collections.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("task", sa.String(64), primary_key=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("trigger", sa.String(16), nullable=False),
        sa.Column("hours", sa.Double(), nullable=False),
        sa.Column("at", sa.String(5)),
        sa.Column("labels", sa.Integer(), nullable=False),
        sa.Column("max_trainings", sa.Integer()),
        sa.Column("max_seconds", sa.Double()),
        sa.Column("publish", sa.String(16), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("last_training", sa.String(64)),
        sa.Column("last_at", sa.Double()),
        sa.Column("last_labels", sa.Integer(), nullable=False),
        sa.Column("last_change", sa.BigInteger()),
        sa.Column("problem", sa.String(1024)),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("training_policies")
    with op.batch_alter_table("deployments") as batch:
        batch.drop_column("label_quorum")
        batch.drop_column("label_weights")
