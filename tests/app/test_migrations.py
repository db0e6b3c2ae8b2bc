"""Every migration, on a database that holds data."""

from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import create_engine, inspect, text

from app.db.migrate import alembic, upgrade


def test_a_database_with_data_goes_up_and_keeps_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'old.sqlite'}"
    command.upgrade(alembic(url), "0001")
    database = create_engine(url)
    with database.begin() as connection:
        connection.execute(
            text("insert into generations (id, manifest, report, created_at) values ('m', '{}', '{}', 1)")
        )
        connection.execute(text("insert into collections (id, description, change, created_at) values ('c', '', 7, 1)"))
        connection.execute(
            text(
                "insert into deployments (collection_id, task, champion, version, facts, history, updated_at) "
                "values ('c', 'identity', 'm', 3, '{}', '[]', 1)"
            )
        )
        for job, lane in (("j1", "work"), ("j2", "train")):
            connection.execute(
                text(
                    "insert into jobs "
                    "(id, kind, body, lane, state, tries, not_before, cancel, done, failed, created_at) "
                    f"values ('{job}', 'sweep', '{{}}', '{lane}', 'queued', 0, 0, false, 0, 0, 1)"
                )
            )
    upgrade(url)
    with database.begin() as connection:
        assert connection.execute(text("select id, queue from jobs order by id")).all() == [
            ("j1", "default"), ("j2", "training"),
        ]  # fmt: skip
        assert connection.execute(text("select champion, version, default_fpir from deployments")).all() == [
            ("m", 3, pytest.approx(0.01))
        ]
    command.downgrade(alembic(url), "0001")
    assert "default_fpir" not in {c["name"] for c in inspect(create_engine(url)).get_columns("deployments")}
    with create_engine(url).begin() as connection:
        assert connection.execute(text("select version from deployments")).scalar() == 3
        assert connection.execute(text("select lane from jobs order by id")).scalars().all() == ["work", "train"]
