"""What is away for a moment, the database or Redis, which may also be full. A refusal to try again after, no fault.

Whatever asks for either may find it away, so this is decided in one place: `away` for the APIs and sockets, and
`server_error` for all other addresses, in which nothing may be asked of the database again.
"""

from __future__ import annotations

import json
import sys
from http import HTTPStatus

import redis.exceptions
import structlog
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils import translation
from django.views import defaults

from chatapp import languages
from chatapp.errors import Overloaded, Unavailable
from chatapp.logs import cause
from engine import protocol

log = structlog.get_logger(__name__)

DATABASE = (OperationalError, InterfaceError)
REDIS = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, redis.exceptions.ReadOnlyError)
AGAIN_S = 3


def away(error: BaseException | None) -> Unavailable | None:
    """What to tell whoever asked; None where nothing is away."""
    if isinstance(error, DATABASE):
        log.warning("database.away", error=type(error).__name__, cause=cause(error))
        return Unavailable("The database cannot be reached right now. Try again.", retry_after_s=AGAIN_S)
    if isinstance(error, REDIS):
        return Unavailable("The queue cannot be reached right now. Try again.", retry_after_s=AGAIN_S)
    if isinstance(error, redis.exceptions.OutOfMemoryError):
        return Overloaded("This server has as much to do as it can hold. Try again.", retry_after_s=AGAIN_S)
    if isinstance(error, redis.exceptions.ResponseError) and protocol.unwritable(str(error)):
        return Unavailable("The queue cannot take anything right now. Try again.", retry_after_s=AGAIN_S)
    return None


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's handler500, which it calls while it handles the exception."""
    refusal = away(sys.exc_info()[1])
    if refusal is None:
        return defaults.server_error(request)
    if request.path.startswith(("/api/", "/v1/")):
        error = {"code": refusal.code, "message": refusal.message, "param": None}
        if request.path.startswith("/v1/"):
            error["type"] = "server_error"
        response = HttpResponse(json.dumps({"error": error}), content_type="application/json")
    else:
        with translation.override(languages.first_guess(request)):
            # Without the request, whose titles ask the database for the site's name.
            response = HttpResponse(render_to_string("503.html"))
    response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
    response["Retry-After"] = str(refusal.retry_after_s)
    return response
