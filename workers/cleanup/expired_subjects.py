"""Erase the people whose `retain_until` has passed."""

import logging

from sqlalchemy import select

from app.db.session import reading, writing
from app.db.tables import Collection, Subject, now
from app.galleries.retention import has_expired
from app.galleries.subjects import erase_subject
from app.publishing.pointers import lock_collection
from app.resources import Resources
from app.storage.audit_log.drafts import EntryDraft
from workers.context import JobContext
from workers.failures import FailureLog

log = logging.getLogger("likeness.cleanup")


def erase_expired_subjects(context: JobContext, failures: FailureLog | None = None) -> int:
    """Erase each expired subject in a transaction of its own, and return their number. Raises Interrupted.

    A subject that cannot be erased is tried again at the next sweep.
    """
    resources, failures = context.resources, failures or FailureLog(log)
    with reading(resources.database) as session:
        subjects = select(Subject.collection_id, Subject.pk).join(Collection, Collection.id == Subject.collection_id)
        expired = session.execute(subjects.where(has_expired(now()), ~Collection.is_deleted)).all()
    erased = 0
    for collection, pk in expired:
        context.check()
        with failures.skip_failure("erase expired subject", collection):
            erased += _erase_if_expired(resources, collection, pk)
    if erased:
        resources.notifier.notify("changes")
        resources.notifier.notify("jobs")
    return erased


def _erase_if_expired(resources: Resources, collection: str, pk: int) -> bool:
    """Erase a subject, unless it was erased or given more time meanwhile. Returns whether it was erased."""
    with writing(resources.database) as session:
        locked = lock_collection(session, collection)
        subject = session.scalar(select(Subject).where(Subject.pk == pk, has_expired(now())))
        if subject is None:
            return False
        resource = resources.audit_chain.names.name_subject(collection, subject.id)
        receipt = erase_subject(session, locked, subject)
        expired_entry = EntryDraft.make("subject.expire", collection=collection, resource=resource)
        resources.audit_chain.append(session, [expired_entry])
    log.info("subject.expired collection=%s faces=%d labels=%d", collection, receipt.faces, receipt.labels)
    return True
