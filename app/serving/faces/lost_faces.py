"""Find out what a database has lost, and take it out of what this process serves or has saved.

A standby of PostgreSQL that takes over may lack the last changes, and so does a database that was set back to a backup.
Their numbers, and the pks of their faces, are then given again, so neither tells that what this process holds is
another history.
"""

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.db.tables import Face
from app.serving.faces.face_table import FaceTable
from app.serving.loaded_index import LoadedIndex
from ml.files import hash_bytes

IDENTITY_QUERY = text(
    "select cast(extract(epoch from greatest(pg_postmaster_start_time(),"
    " (select stats_reset from pg_stat_archiver))) as double precision),"
    " cast(cast(to_regclass(:table) as oid) as bigint), cast(oid as bigint)"
    " from pg_database where datname = current_database()"
)
"""A server that begins anew after the crash of one of its processes goes on as the same, but resets its statistics."""

DatabaseIdentity = tuple[float, int, int]
"""When the server was started, or began anew after a crash; the oid of the table of faces, and of the database."""


def identify_database(session: Session) -> DatabaseIdentity:
    """Return what tells a database from one that takes over, and from itself without the last changes.

    Where a dump is put back, the tables are others. SQLite has no identity: processes notice that its file is another.
    """
    if session.get_bind().dialect.name == "sqlite":
        return 0.0, 0, 0
    started_at, table, database = session.execute(IDENTITY_QUERY, {"table": Face.__tablename__}).one()
    return float(started_at), int(table or 0), int(database)


def hash_contents(index: LoadedIndex, faces: FaceTable) -> str:
    """Return the SHA-256 of which faces an index holds, by their ids, and of the compensation of its rows."""
    pks = index.read_ids()
    return hash_bytes(pks.tobytes() + faces.read_face_ids(pks).tobytes() + index.compensation.sha256.encode())


def take_out_lost(index: LoadedIndex, known: FaceTable, stored: FaceTable) -> int:
    """Take out the faces that are not stored, or whose pk another face has. Returns how many there were.

    The index is compared with its table at the next step, and built anew if faces are missing.
    known: the faces that this process has served; stored: those of the table
    """
    with index.update_lock:
        pks = index.read_ids()
        face_ids = known.read_face_ids(pks)
        lost = pks[(face_ids != stored.read_face_ids(pks)) | (face_ids == b"")]
        index.apply(lost, (), index.state.change)
        index.comparison_due = True
    return len(lost)
