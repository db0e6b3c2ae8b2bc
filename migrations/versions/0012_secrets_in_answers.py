"""Stored answers hold no secrets of keys."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

answers = sa.table(
    "answers",
    sa.column("key_id", sa.String),
    sa.column("idempotency_key", sa.String),
    sa.column("status", sa.Integer),
    sa.column("body", sa.LargeBinary),
)


def upgrade() -> None:
    """Remove the secret from the answers to requests for a key. All of them have the status 201."""
    database = op.get_bind()
    is_short = sa.func.length(answers.c.body) < 65_536  # that of a new key is: its collections have 255 bytes each
    stored = database.execute(sa.select(answers).where(answers.c.status == 201, is_short)).all()
    for row in stored:
        body = _parse_object(row.body)
        if str(body.get("key", "")).startswith("lk_"):
            without = json.dumps({name: value for name, value in body.items() if name != "key"}).encode()
            is_row = (answers.c.key_id == row.key_id, answers.c.idempotency_key == row.idempotency_key)
            database.execute(sa.update(answers).where(*is_row).values(body=without))


def _parse_object(body: bytes) -> dict[str, object]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def downgrade() -> None:
    """The secrets are gone."""
