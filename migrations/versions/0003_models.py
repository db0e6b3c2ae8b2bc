"""Tables and columns say model instead of generation, and measurements instead of facts."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

MODEL_ID_TABLES = ("embeddings", "followers")


def upgrade() -> None:
    op.drop_index("ix_generations_training_id", "generations")
    op.rename_table("generations", "models")
    op.create_index("ix_models_training_id", "models", ["training_id"])
    for table in MODEL_ID_TABLES:
        op.alter_column(table, "generation_id", new_column_name="model_id")
    op.alter_column("deployments", "facts", new_column_name="measurements")


def downgrade() -> None:
    op.alter_column("deployments", "measurements", new_column_name="facts")
    for table in MODEL_ID_TABLES:
        op.alter_column(table, "model_id", new_column_name="generation_id")
    op.drop_index("ix_models_training_id", "models")
    op.rename_table("models", "generations")
    op.create_index("ix_generations_training_id", "generations", ["training_id"])
