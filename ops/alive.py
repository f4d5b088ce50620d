"""`python -m ops.alive web|engine|recorder|celery|beat`: whether this machine's process of that name does its work.

For containers' health checks. Exit status 0, or 1 with one line that says why. It loads neither Django nor torch: it is
asked every few seconds, and a check must not cost what it watches. A web process is asked over HTTP; the others leave
signs in Redis, by Redis's clock.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from engine.bus import connect
from engine.protocol import FINISHED, RECORDER_GROUP, WORKERS, worker_key

TIMEOUT_S = 5.0
# A worker says so every second; while a large step is computed too, since another thread does it.
WORKER_S = 15.0
# A recorder asks for new entries every 2 s, unless it writes some.
RECORDER_S = 60.0
# Beat sends a task every 2 s, and a worker ends one every 2 s.
TICK_S = 60.0
BEAT, CELERY = "octavo:tick:beat", "octavo:tick:celery"


class Dead(Exception):
    """Why it is not as it should be."""


def secret(name: str) -> str:
    file = os.environ.get(f"{name}_FILE")
    return Path(file).read_text().strip() if file else os.environ.get(name, "")


def web() -> None:
    host = os.environ.get("OCTAVO_HOSTS", "").partition(",")[0].strip() or "127.0.0.1"
    url = f"http://127.0.0.1:{os.environ.get('PORT') or 8000}/healthz"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Host": host}), timeout=TIMEOUT_S) as reply:
            if reply.status != 200:
                raise Dead(f"{url} answers {reply.status}")
    except (urllib.error.URLError, OSError) as error:
        raise Dead(f"{url}: {getattr(error, 'reason', error)}") from None


def now_ms(client: Any) -> int:
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def engine(client: Any) -> None:
    """A worker of this host that says that it lives and is well; one that drains is well too."""
    said = "none has said anything"
    for worker in client.zrange(WORKERS, now_ms(client) - int(WORKER_S * 1000), "+inf", byscore=True):
        details = json.loads(client.hget(worker_key(worker.decode()), "details") or b"{}")
        if details.get("host") == socket.gethostname():
            if details.get("healthy"):
                return
            said = f"{details.get('id')} is not well"
    raise Dead(f"no worker of {socket.gethostname()} lives: {said}")


def recorder(client: Any) -> None:
    mine = [
        int(consumer["idle"])
        for consumer in client.xinfo_consumers(FINISHED, RECORDER_GROUP)
        if consumer["name"].decode().startswith(f"{socket.gethostname()}-")
    ]
    if not mine or min(mine) > RECORDER_S * 1000:
        raise Dead(f"no recorder of {socket.gethostname()} has asked for what ended within {RECORDER_S:.0f} s")


def ticking(key: str, what: str) -> Callable[[Any], None]:
    def check(client: Any) -> None:
        last = client.xrevrange(key, count=1)
        age_s = (now_ms(client) - int(last[0][0].partition(b"-")[0])) / 1000 if last else None
        if age_s is None or age_s > TICK_S:
            raise Dead(f"{what} {'never' if age_s is None else f'{age_s:.0f} s ago'}")

    return check


IN_REDIS: dict[str, Callable[[Any], None]] = {
    "engine": engine,
    "recorder": recorder,
    "celery": ticking(CELERY, "a task ended last"),
    "beat": ticking(BEAT, "a task was sent last"),
}


def check(role: str) -> None:
    if role == "web":
        web()
        return
    try:
        url = secret("REDIS_URL")
        if not url:
            raise Dead("REDIS_URL is not set")
        with connect(url, TIMEOUT_S) as client:
            IN_REDIS[role](client)
    except (OSError, redis.RedisError, ValueError) as error:
        raise Dead(f"Redis: {type(error).__name__}") from None


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in ("web", *IN_REDIS):
        print(f"Usage: python -m ops.alive {'|'.join(('web', *IN_REDIS))}", file=sys.stderr)
        return 2
    try:
        check(sys.argv[1])
    except Dead as reason:
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
