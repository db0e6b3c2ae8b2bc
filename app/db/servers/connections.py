"""Open no connection to a standby of PostgreSQL, nor to a server that a failover left behind and that runs again.

They lack what was written last: who refused consent, who was erased, and which keys were revoked.
"""

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine, event
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from app.db.servers.history import SERVERS_FILE, ServerHistory, ServerTimeline
from app.db.tables import ServerToken
from app.startup import LEFT_BEHIND, STANDBY

REPORT_SECONDS = 60.0
HOST_OPTIONS = ("host", "hostaddr", "port")
"""The options of libpq that may be lists, of one value for each host."""
TIMELINE_DIGITS = 8
STANDBY_QUERY = "select pg_is_in_recovery()"
SERVER_QUERY = f"""
select system_identifier::text, left(pg_walfile_name(pg_current_wal_lsn()), {TIMELINE_DIGITS}),
    (select oid::bigint from pg_database where datname = current_database())
from pg_control_system()"""
"""What the control file says of the timeline may be out of date for a while after a failover."""
TOKEN_TABLE = ServerToken.__tablename__
TABLE_QUERY = f"select to_regclass('{TOKEN_TABLE}') is not null"
TOKEN_QUERY = f"select exists(select 1 from {TOKEN_TABLE} where token = %s)"
TOKEN_STATEMENT = f"insert into {TOKEN_TABLE} (token, created_at) values (%s, %s)"
SERVER_INFO = "server"

log = logging.getLogger("likeness.database")


class _RefusedServerError(Exception):
    """The server of a connection must not be used. host: its address, which only the log may show"""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(reason)
        self.host = host


def watch_server(database: Engine, home: Path | None) -> None:
    """Open no connection to a standby, nor to a server that a failover left behind, and use none that is open.

    Engines raise OperationalError in place of such a connection. home: see `ServerHistory`
    """
    history = ServerHistory(home)
    connector = _Connector(history)

    def connect(dialect: Dialect, record: ConnectionPoolEntry | None, values: Any, options: dict[str, Any]) -> Any:
        connection, server = connector.connect(dialect, values, options)
        if record is not None:
            record.info[SERVER_INFO] = server
        return connection

    def check_server(_: object, record: ConnectionPoolEntry, __: object) -> None:
        server = record.info[SERVER_INFO]
        if server is not None and history.is_behind(server):
            raise DisconnectionError(LEFT_BEHIND)

    event.listen(database, "do_connect", connect)
    event.listen(database, "checkout", check_server)


class _Connector:
    """Opens connections to servers that write, and that no failover left behind."""

    def __init__(self, history: ServerHistory) -> None:
        self._history = history
        self._reported_at = -math.inf

    def connect(self, dialect: Dialect, values: Any, options: dict[str, Any]) -> tuple[Any, ServerTimeline | None]:
        """Return a connection and its server. If the server must not be used, each host of the address is tried.

        Raises the driver's OperationalError.
        """
        error_class = dialect.loaded_dbapi.OperationalError
        try:
            return self._open(dialect, values, options)
        except _RefusedServerError as refusal:
            for host in list_hosts(options):
                with suppress(_RefusedServerError, error_class):
                    opened = self._open(dialect, values, options | host)
                    self._report(refusal)
                    return opened
            raise error_class(str(refusal)) from None

    def _open(self, dialect: Dialect, values: Any, options: dict[str, Any]) -> tuple[Any, ServerTimeline | None]:
        connection: Any = dialect.connect(*values, **options)
        try:
            host = f"{connection.info.host}:{connection.info.port}"
            if is_standby(connection):
                raise _RefusedServerError(
                    host,
                    f"{STANDBY}, which may lack what was written last. Wait until it takes over or the primary is "
                    "back, or correct the address",
                )
            server = read_server(dialect, connection)
            if server is not None:
                self._check(server, host)
                self._check_token(dialect, connection, server, host)
        except BaseException:
            connection.close()
            raise
        return connection, server

    def _check(self, server: ServerTimeline, host: str) -> None:
        newest = self._history.find_newest(server)
        if newest != server.timeline:
            raise _RefusedServerError(
                host,
                f"{LEFT_BEHIND}: its server has the timeline {server.timeline}, after {newest} was seen. Stop this "
                f"server; if an older copy was restored on purpose, delete {SERVERS_FILE} in the home",
            )

    def _check_token(self, dialect: Dialect, connection: Any, server: ServerTimeline, host: str) -> None:
        """Tell the server from another one that was promoted from the same timeline: no token was left there."""
        with _at_once(connection):
            if not connection.execute(TABLE_QUERY).fetchone()[0]:
                return  # the database is still to be migrated
            token = self._history.find_token(server, lambda: leave_token(dialect, connection))
            if token is not None and not connection.execute(TOKEN_QUERY, (token,)).fetchone()[0]:
                raise _RefusedServerError(
                    host,
                    f"{LEFT_BEHIND}: its server has the timeline {server.timeline}, as another one that is in use, and "
                    f"lacks what was written there. Stop this server; if an older copy was restored on purpose, or the "
                    f"other server has been given up, delete {SERVERS_FILE} in the home",
                )

    def _report(self, refusal: _RefusedServerError) -> None:
        """Log that another host is used. Where there is none, whoever needs the database logs the reason."""
        now = time.monotonic()
        if now - self._reported_at >= REPORT_SECONDS:
            self._reported_at = now
            log.warning("database.server_refused server=%s: %s. Another one is used", refusal.host, refusal)


def is_standby(connection: Any) -> bool:
    """Whether the server of a new connection is in recovery. Raises the driver's OperationalError."""
    with _at_once(connection):
        return bool(connection.execute(STANDBY_QUERY).fetchone()[0])


def read_server(dialect: Dialect, connection: Any) -> ServerTimeline | None:
    """Return the server of a new connection; None if it does not let its user ask.

    Raises the driver's OperationalError if the connection is lost.
    """
    with _at_once(connection):
        try:
            system, timeline, database = connection.execute(SERVER_QUERY).fetchone()
        except dialect.loaded_dbapi.Error as error:
            if connection.closed:
                raise
            log.info("database.server_unknown error=%s", error)
            return None
    return ServerTimeline(system, int(timeline, 16), database)


def leave_token(dialect: Dialect, connection: Any) -> str | None:
    """Leave a new token in the database; None if it takes none. It outlasts a crash of the server.

    Raises the driver's OperationalError if the connection is lost.
    """
    token = uuid4().hex
    try:
        with connection.transaction():
            connection.execute("set local synchronous_commit to local")
            connection.execute(TOKEN_STATEMENT, (token, time.time()))
    except dialect.loaded_dbapi.Error as error:
        if connection.closed:
            raise
        log.info("database.token_not_left error=%s", error)
        return None
    return token


@contextmanager
def _at_once(connection: Any) -> Iterator[None]:
    """Commit each statement, so that no transaction is open afterwards."""
    connection.autocommit = True
    try:
        yield
    finally:
        if not connection.closed:
            connection.autocommit = False


def list_hosts(options: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the options that name each host of an address by itself; none if there is one host only."""
    lists = {name: str(options[name]).split(",") for name in HOST_OPTIONS if name in options}
    count = max(map(len, lists.values()), default=1)
    hosts = range(count if count > 1 else 0)
    return [{name: items[host if len(items) > 1 else 0] for name, items in lists.items()} for host in hosts]
