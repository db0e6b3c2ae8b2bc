"""Remove the entries of the audit log that are older than the setting `audit_days`."""

from app.db.session import writing
from app.db.tables import now
from app.resources import Resources
from workers.cleanup.stale_rows import DAY_SECONDS


def cut_audit_log(resources: Resources) -> int:
    """Cut the oldest entries off, and return their number. Raises Busy."""
    days = resources.settings.audit_days
    if not days:
        return 0
    with writing(resources.database) as session:
        return resources.audit_chain.cut(session, now() - days * DAY_SECONDS)
