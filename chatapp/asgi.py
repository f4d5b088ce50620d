"""HTTP to Django, websockets to their consumers: what daphne serves."""

from __future__ import annotations

import gc
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapp.settings.local")
django_application = get_asgi_application()  # before the imports below: consumers need the apps

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from django.conf import settings  # noqa: E402
from django.urls import get_resolver, re_path  # noqa: E402

from chatapp import bodies  # noqa: E402
from chatapp.api.pace import paced  # noqa: E402
from chatapp.api.routing import key_sockets, session_sockets  # noqa: E402
from chatapp.celery import app as celery  # noqa: E402
from chatapp.dashboard.routing import websocket_urlpatterns as operators_sockets  # noqa: E402
from chatapp.hygiene import limited  # noqa: E402
from chatapp.metrics import figures  # noqa: E402
from chatapp.metrics.sockets import counted  # noqa: E402
from chatapp.operators.announce import announce_setup  # noqa: E402
from chatapp.origins import from_our_pages  # noqa: E402
from engine import tracing  # noqa: E402

CLOSE_NOT_FOUND = 4404
# A collection of the oldest generation walks every object that there is: with the defaults of 700 allocations it came
# about every second while sockets streamed, and held up all of them for 0.2 s with 300, 1 s with 1,000. What has been
# imported by now stays for good; the rest is looked at after so many allocations that a step's events are gone by then.
BROKER_WITHIN = {"socket_timeout": 3.0, "socket_connect_timeout": 3.0}
COLLECT_AFTER = (10_000, 10, 10)

# Nobody's page waits for a silent broker: what is to be done stands in a row, and is found there.
celery.conf.update(task_publish_retry=False)
celery.conf.broker_transport_options = {**celery.conf.broker_transport_options, **BROKER_WITHIN}

tracing.begin("web")
figures.this_is("web")
announce_setup()
bodies.bound(max(settings.DATA_UPLOAD_MAX_MEMORY_SIZE, settings.OCTAVO_MAX_BODY))


async def nowhere(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[Any]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Refuses the handshake at an address that has no socket."""
    await receive()
    await send({"type": "websocket.close", "code": CLOSE_NOT_FOUND})


elsewhere: Any = nowhere  # routes are typed for views; in a websocket's they are applications
# A browser sends its session's cookie from any site's page, so these sockets check where they are opened from.
by_session: Any = from_our_pages(
    AuthMiddlewareStack(URLRouter([*session_sockets, *operators_sockets, re_path("", elsewhere)]))
)

application = paced(
    counted(
        ProtocolTypeRouter(
            {
                "http": bodies.lent(limited(django_application)),
                "websocket": URLRouter([*key_sockets, re_path("", by_session)]),
            }
        )
    )
)

_ = get_resolver().url_patterns  # views are imported now, and not with the first request
gc.collect()
gc.freeze()
gc.set_threshold(*COLLECT_AFTER)
