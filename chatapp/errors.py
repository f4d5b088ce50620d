"""Why a request is refused, in words for its sender. The pages and the APIs give these their own forms."""

from __future__ import annotations


class Refusal(Exception):
    """`code` is for programs, `message` for people; `param` names the field at fault; `status` is the HTTP status."""

    status = 400
    code = "invalid_request"
    retryable = False

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.param = param
        self.retry_after_s = retry_after_s


class BadInput(Refusal):
    pass


class Forbidden(Refusal):
    status = 403
    code = "not_allowed"


class NotFound(Refusal):
    """Also for what belongs to someone else: it does not exist for the asker."""

    status = 404
    code = "not_found"


class Conflict(Refusal):
    status = 409
    code = "conflict"
    retryable = True


class IdempotencyMismatch(Refusal):
    status = 422
    code = "idempotency_mismatch"


class Unavailable(Refusal):
    """Redis does not answer; what was asked for may be tried again."""

    status = 503
    code = "unavailable"
    retryable = True


class Overloaded(Unavailable):
    """The machine has as much to do as it can hold, whoever asks; what was asked for has not begun."""

    code = "overloaded"


class TooMany(Refusal):
    status = 429
    code = "queue_full"
    retryable = True
