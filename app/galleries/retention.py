"""Whose faces may be used: nobody's whose retention has ended, or who has refused consent."""

import math

from sqlalchemy import BindParameter, ColumnElement, or_

from app.db.tables import Subject, now
from app.errors import Conflict

NO_CONSENT, RETENTION_ENDED, RETENTION_LIMITED = "NO_CONSENT", "RETENTION_ENDED", "RETENTION_LIMITED"
"""Why a photo of a person is not enrolled, or why a face cannot be given to nobody."""
REASONS = {
    NO_CONSENT: "consent is refused or was never recorded",
    RETENTION_ENDED: "the time until `retain_until` is over",
}

SUBJECTS = Subject.__table__.c


def may_be_used(at: float | BindParameter[float]) -> ColumnElement[bool]:
    """Return the condition that a face may be found and learned from, for a query with an outer join of subjects.

    A face without a name has no subject, and is used. at: seconds since 1970
    """
    is_retained = or_(SUBJECTS.retain_until.is_(None), SUBJECTS.retain_until > at)
    return is_retained & or_(SUBJECTS.consent.is_(None), SUBJECTS.consent)


def find_end_of_use(consent: bool | None, retain_until: float | None) -> float:
    """Return when `may_be_used` ends for the faces of a subject: seconds since 1970, inf for never."""
    if consent is False:
        return -math.inf
    return math.inf if retain_until is None else retain_until


def has_expired(at: float) -> ColumnElement[bool]:
    """Return the condition that a subject is to be erased."""
    return Subject.retain_until <= at


def find_refusal(subject: Subject | None, needs_consent: bool) -> str | None:
    """Return why no photo of the subject may be enrolled: NO_CONSENT, RETENTION_ENDED or None.

    subject: None if it is new; needs_consent: whether consent must have been recorded, and not just not be refused
    """
    consent = None if subject is None else subject.consent
    if consent is False or (needs_consent and not consent):
        return NO_CONSENT
    is_over = subject is not None and subject.retain_until is not None and subject.retain_until <= now()
    return RETENTION_ENDED if is_over else None


def refuse_enrolment(subject: str, reason: str) -> Conflict:
    """Return the error that answers a request to give a face to a subject that may not be enrolled."""
    return Conflict(
        f"no face may be given to subject {subject!r}: {REASONS[reason]}; change the subject first, if that is right",
        code="EnrolmentNotAllowed",
        reason=reason,
    )


def check_enrolment(subject: Subject, needs_consent: bool) -> None:
    """Check that a face may be given to the subject. Raises Conflict. needs_consent: see `find_refusal`"""
    reason = find_refusal(subject, needs_consent)
    if reason is not None:
        raise refuse_enrolment(subject.id, reason)


def check_release(subject: Subject) -> None:
    """Check that a face of the subject may be given to somebody else, or to nobody. Raises Conflict.

    Another name would undo a refusal: the face could be found again.
    """
    reason = find_refusal(subject, needs_consent=False)
    if reason is not None:
        raise Conflict(
            f"no face of subject {subject.id!r} may be given to anybody else: {REASONS[reason]}; delete the face, or "
            "change the subject first, if that is right",
            code="EnrolmentNotAllowed",
            reason=reason,
        )


def check_unnaming(subject: Subject) -> None:
    """Check that a face of the subject may be given to nobody. Raises Conflict.

    Without a subject a face has no `retain_until`, and would be kept for good.
    """
    if subject.retain_until is not None:
        raise Conflict(
            f"a face of subject {subject.id!r}, who has a `retain_until`, may not be given to nobody: it would be kept "
            "after that time; delete the face, or give it to the subject whom it shows",
            code="EnrolmentNotAllowed",
            reason=RETENTION_LIMITED,
        )
