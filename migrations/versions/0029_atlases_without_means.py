"""An atlas by PCA stores no mean of the embeddings any more. Each is drawn anew."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

ATLASES = sa.table(
    "atlases",
    sa.column("method", sa.String),
    sa.column("projection", sa.LargeBinary),
    sa.column("fitted_faces", sa.Integer),
    sa.column("change", sa.BigInteger),
)


def upgrade() -> None:
    _forget_projections()


def downgrade() -> None:
    _forget_projections()


def _forget_projections() -> None:
    """Empty them, and have a worker draw the atlases anew, since they are behind, and were fitted to fewer faces."""
    forgotten = {"projection": b"", "fitted_faces": 0, "change": -1}
    op.execute(sa.update(ATLASES).where(ATLASES.c.method == "pca").values(**forgotten))
