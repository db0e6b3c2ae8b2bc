"""The environment of Alembic. The caller of Alembic sets the address of the database."""

from alembic import context

from app.db.session import open_database
from app.db.tables import Base


def run() -> None:
    url = context.config.get_main_option("sqlalchemy.url")
    assert url, "the address of the database is missing"
    database = open_database(url, context.config.attributes.get("home"))
    with database.execution_options(writes=True).connect() as connection:
        if database.dialect.name == "sqlite":  # what refers to a table would be deleted while that is made anew
            connection.connection.execute("PRAGMA foreign_keys=OFF")  # no effect within a transaction
        context.configure(
            connection,
            target_metadata=Base.metadata,
            render_as_batch=database.dialect.name == "sqlite",
            compare_type=True,
        )
        with context.begin_transaction():
            if database.dialect.name == "postgresql":  # two that start at once take turns
                connection.exec_driver_sql("select pg_advisory_xact_lock(5643872)")
            context.run_migrations()
        connection.commit()
    database.dispose()


run()
