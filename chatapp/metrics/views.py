"""/metrics, and /metrics/targets: where Prometheus finds the workers (its http_sd). Both for whoever knows the token.

No session and no API key opens them, whosever it is: they tell of all teams together. Where no token is set they are
not there at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path

import structlog
from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from chatapp.logs import cause
from chatapp.metrics.sharing import forget_dead
from chatapp.metrics.state import StateCollector
from chatapp.streaming import workers
from chatapp.streaming.connection import AWAY

log = structlog.get_logger(__name__)

View = Callable[[HttpRequest], HttpResponse]


def for_token(view: View) -> View:
    @wraps(view)
    def guarded(request: HttpRequest) -> HttpResponse:
        token = settings.OCTAVO_METRICS_TOKEN
        if not token:
            raise Http404
        if not constant_time_compare(request.headers.get("Authorization", ""), f"Bearer {token}"):
            response = HttpResponse(status=401, content_type="text/plain")
            response["WWW-Authenticate"] = "Bearer"
            # A scraper with an old token asks every few seconds: it is counted, and not logged each time.
            response._has_been_logged = True  # type: ignore[attr-defined]
            return response
        return view(request)

    return guarded


@require_safe
@never_cache
@for_token
def metrics(request: HttpRequest) -> HttpResponse:
    encode, kind = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(registry()), content_type=kind)


def registry() -> CollectorRegistry:
    """What all processes of this machine have said so far, and how things are now."""
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    found = CollectorRegistry()
    if folder:
        forget_dead(Path(folder))
        _Readable(found, path=folder)
    else:
        found.register(_Own())
    found.register(StateCollector())
    return found


class _Readable(MultiProcessCollector):
    """All files that can be read. A process that was killed as it made one, or is making it right now, leaves an empty
    one, or a part of one: the others' counts are told nevertheless."""

    def collect(self) -> Iterable[Metric]:
        files = [str(file) for file in Path(self._path).glob("*.db")]
        return self.merge([file for file in files if self._can_be_read(file)])

    def _can_be_read(self, file: str) -> bool:
        try:
            self._read_metrics([file])
        except Exception as error:
            log.warning("metrics.unreadable", file=Path(file).name, cause=cause(error))
            return False
        return True


class _Own(Collector):
    """What this process says, where it is the only one."""

    def collect(self) -> Iterator[Metric]:
        return (metric for metric in REGISTRY.collect() if metric.name.startswith(("octavo_", "process_")))


@require_safe
@never_cache
@for_token
def targets(request: HttpRequest) -> HttpResponse:
    """Workers that serve their own /metrics. Which is which is said as meta labels: ids are new at every start."""
    try:
        live = workers.live()
    except AWAY:
        # Prometheus keeps the targets that it knows when it gets no answer; an empty list would end them all.
        return HttpResponse("Redis does not answer.", status=503, content_type="text/plain")
    groups = [
        {
            "targets": [worker.metrics],
            "labels": {"__meta_octavo_worker": worker.id, "__meta_octavo_model": worker.model},
        }
        for worker in live
        if worker.metrics
    ]
    return JsonResponse(groups, safe=False)
