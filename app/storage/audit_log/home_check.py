"""Notice that a home and a database are not of one installation: the audit log in the database is signed by the home.

Without this check a worker would take the jobs of the other installation, whose uploads it does not have, sign receipts
of erasures whose files lie elsewhere, and sweep its own photos away, since no row names them.
"""

from sqlalchemy import Engine, inspect, select
from sqlalchemy.orm import Session

from app.db.session import reading
from app.db.tables import AuditEntry, AuditHead
from app.startup import CannotStart
from app.storage.audit_log.chain import HEAD_ID, AuditChain, to_draft
from app.storage.installation_key import KEY_FILE


def check_home_of_database(database: Engine, chain: AuditChain) -> None:
    """Check that the audit log, if it has begun, was written with the key in this home.

    A head that somebody has altered does not count as another home's: the log says so itself.
    Raises CannotStart, OperationalError, DatabaseError.
    """
    if not inspect(database).has_table(AuditHead.__tablename__):
        return
    with reading(database) as session:
        head = session.get(AuditHead, HEAD_ID)
        if head is None or chain.is_signed(head) or _has_written_last_entry(session, chain, head):
            return
    raise CannotStart(
        f"the database belongs to another home than {chain.home.resolve()}: its audit log was not signed with the "
        f"{KEY_FILE} that lies there. Check LIKENESS_HOME and LIKENESS_DATABASE_URL, or put the {KEY_FILE} of this "
        "database back from a backup. If that key is lost, `likeness models sign` binds the database to this home"
    )


def _has_written_last_entry(session: Session, chain: AuditChain, head: AuditHead) -> bool:
    last, before = (*session.scalars(select(AuditEntry).order_by(AuditEntry.number.desc()).limit(2)), None, None)[:2]
    if last is None:
        return False
    previous_mac = head.cut_mac if before is None else before.mac
    return bool(last.mac == chain.compute_mac(last.number, to_draft(last), previous_mac))
