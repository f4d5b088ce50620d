"""What can go wrong, as exceptions. Each has `code`, `message`, `param`, `retryable` and `retry_after_s`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from octavo_client.answer import Answer

Error = TypeVar("Error", bound="OctavoError")


class OctavoError(Exception):
    """The base of all. `code` is the server's word for it (its documentation lists them), or one of this client's.

    `param`: the field that is wrong. `retryable`: the same may work later, after `retry_after_s` where that is known.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "unknown",
        param: str | None = None,
        retryable: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.retryable = retryable
        self.retry_after_s = retry_after_s

    def copy(self: Error) -> Error:
        """Another one like it: an exception is raised once."""
        return type(self)(
            self.message,
            code=self.code,
            param=self.param,
            retryable=self.retryable,
            retry_after_s=self.retry_after_s,
        )

    def __str__(self) -> str:
        where = f", {self.param}" if self.param else ""
        return f"{self.message} [{self.code}{where}]"


class ConnectionFailed(OctavoError):
    """The server could not be reached, or not for too long. What was asked may still be answered there."""


class SessionEnded(OctavoError):
    """The server ended this socket for good: connecting again would be of no use."""


class AuthenticationFailed(SessionEnded):
    """The API key or the ticket opens nothing (4401)."""


class AccessDenied(SessionEnded):
    """The key is right, and not for this: its network, its origin, its team (4403)."""


class AccessRevoked(SessionEnded):
    """The key was revoked, or has expired, while the socket was open (4440)."""


class ClientClosed(OctavoError):
    """This client was closed."""


class RequestRefused(OctavoError):
    """The server refused a request: nothing of it runs. `param` names the field."""


class ResponseFailed(OctavoError):
    """An answer failed on its way. `answer` has what had come of it."""

    answer: Answer | None = None


class ResponseLost(ResponseFailed):
    """The rest of an answer cannot be had any more: a stateless one whose connection broke, or one that has expired."""


class AnswerTimeout(ResponseFailed, TimeoutError):
    """An answer took longer than `timeout`; it was cancelled."""
