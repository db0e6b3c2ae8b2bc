"""Erase the people whose `retain_until` has passed."""

import logging

from sqlalchemy import select

from app.db.session import reading, writing
from app.db.tables import Collection, Subject, now
from app.galleries.retention import has_expired
from app.galleries.subjects import erase_subject
from app.publishing.pointers import lock_collection
from app.storage.audit_log.drafts import EntryDraft
from workers.context import JobContext

log = logging.getLogger("likeness.cleanup")


def erase_expired_subjects(context: JobContext) -> int:
    """Erase each expired subject in a transaction of its own, and return their number. Raises Interrupted."""
    resources = context.resources
    with reading(resources.database) as session:
        subjects = select(Subject.collection_id, Subject.pk).join(Collection, Collection.id == Subject.collection_id)
        expired = session.execute(subjects.where(has_expired(now()), ~Collection.is_deleted)).all()
    erased = 0
    for collection, pk in expired:
        context.check()
        with writing(resources.database) as session:
            locked = lock_collection(session, collection)
            subject = session.scalar(select(Subject).where(Subject.pk == pk, has_expired(now())))
            if subject is None:
                continue  # erased, or given more time
            resource = resources.audit_chain.names.name_subject(collection, subject.id)
            receipt = erase_subject(session, locked, subject)
            expired_entry = EntryDraft.make("subject.expire", collection=collection, resource=resource)
            resources.audit_chain.append(session, [expired_entry])
        erased += 1
        log.info("subject.expired collection=%s faces=%d labels=%d", collection, receipt.faces, receipt.labels)
    if erased:
        resources.notifier.notify("changes")
        resources.notifier.notify("jobs")
    return erased
