"""Every error that the service answers with, as RFC 9457 problems.

AppError
├── Invalid            400 / 422   the request is not valid; `code` says why
├── Unauthenticated    401
├── Forbidden          403
├── NotFound           404
├── RequestTimeout     408         the client sends too slowly
├── Conflict           409
├── Stale              412         If-Match names another version
├── TooLarge           413
├── TooManyRequests    429         a limit per minute is reached: Retry-After
├── HeadersTooLarge    431
└── Busy               503         try again: Retry-After

Errors of `ml` get their status from ML_ERRORS. A test checks that none is missing.
"""

from typing import Any

from ml import errors as ml


class Stopped(Exception):
    """Work that may not go on, through no fault of what it works on. No request ends so."""


class AppError(Exception):
    """An error that is answered as a problem. `code` is stable and for programs, `detail` is for people."""

    status = 500
    code = "InternalServerError"
    title = "The service failed"
    retryable = False

    def __init__(self, detail: str, *, code: str | None = None, **extra: Any) -> None:
        super().__init__(detail)
        self.detail, self.extra = detail, extra
        self.code = code or self.code


class Invalid(AppError):
    status, code, title = 422, "InvalidParameter", "The request is not valid"


class Unauthenticated(AppError):
    status, code, title = 401, "AccessDenied", "A valid key is needed"


class Forbidden(AppError):
    status, code, title = 403, "AccessDenied", "This key may not do that"


class NotFound(AppError):
    status, code, title = 404, "ResourceNotFound", "Not found"


class RequestTimeout(AppError):
    status, code, title = 408, "RequestTimeout", "The request did not arrive in time"


class Conflict(AppError):
    status, code, title = 409, "ResourceInUse", "The request conflicts with the current state"


class Stale(AppError):
    status, code, title = 412, "PreconditionFailed", "It has changed since you read it"


class TooLarge(AppError):
    status, code, title = 413, "RequestTooLarge", "A limit is exceeded"


class HeadersTooLarge(AppError):
    status, code, title = 431, "HeadersTooLarge", "The headers are too large"


class TooManyRequests(AppError):
    """retry_after_seconds: how long to wait, for the header Retry-After"""

    status, code, title, retryable = 429, "TooManyRequests", "Too many requests", True

    def __init__(self, detail: str, *, retry_after_seconds: int) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class Busy(AppError):
    status, code, title, retryable = 503, "Throttling", "Try again shortly", True


class OutcomeUnknown(Busy):
    """The connection to the database was lost during a commit, which may have been carried out."""


ML_ERRORS: dict[type[ml.LikenessError], tuple[int, str]] = {
    ml.UnknownComponent: (422, "UnknownComponent"),
    ml.Unreadable: (422, "InvalidImageFormat"),
    ml.WrongShape: (422, "InvalidParameter"),
    ml.NotFinite: (422, "InvalidParameter"),
    ml.NotFitted: (409, "ModelNotReady"),
    ml.NotLinear: (409, "NotExplainable"),
    ml.TooFewPairs: (409, "TooFewLabels"),
    ml.CannotGoOn: (409, "CannotGoOn"),
    ml.FitFailed: (409, "FitFailed"),
    ml.CannotDescribe: (409, "ExternalDescriptor"),
    ml.Corrupt: (503, "ModelUnavailable"),
    ml.Unavailable: (409, "NotInstalled"),
}


def describe_problem(error: Exception, request_id: str = "") -> dict[str, Any]:
    """Describe an error as the body of an answer or the problem of a failed job.

    Its members are type, title, status, detail, code, retryable, request_id, and what the error adds.
    """
    status, code, title, retryable, extra = 500, AppError.code, AppError.title, False, {}
    detail = "an unexpected error; it is in the log under this request id"
    if isinstance(error, AppError):
        status, code, title, retryable = error.status, error.code, error.title, error.retryable
        detail, extra = error.detail, error.extra
    elif isinstance(error, ml.LikenessError):
        status, code = ML_ERRORS[type(error)]
        code = getattr(error, "code", code)
        title, detail, retryable = "The request is not valid", str(error), status == 503
        extra = {"missing": error.missing} if isinstance(error, ml.TooFewPairs) else {}
    return {
        "type": f"urn:likeness:problem:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        "retryable": retryable,
        "request_id": request_id,
        **extra,
    }
