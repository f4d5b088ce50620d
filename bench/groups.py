"""The customary design, for comparison only: tokens through Channels' layer (channels_redis), a group an answer.

Each socket joins the group of its answer, and whoever generates calls `group_send` for every token, as the
documentation of Channels has it. Nothing of the product is used and nothing is kept: no log, no resumption, no limits,
no database. `application` is what daphne serves; `python -m bench.groups FOLDER --tokens 600 --rate 20` generates, with
the files and the counts of bench.fake_engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import django
import redis.asyncio
from django.conf import settings

if not settings.configured:
    settings.configure(
        CHANNEL_LAYERS={
            "default": {
                "BACKEND": os.environ.get("BENCH_LAYER", "channels_redis.core.RedisChannelLayer"),
                "CONFIG": {
                    # redis-py opens a hundred connections at most and gives a blocked read five seconds, unless told
                    # otherwise, and the layer drops what is over a hundred messages for all sockets of a process:
                    # that would have been what failed, and not the design that is compared.
                    "hosts": [
                        {"address": os.environ.get("REDIS_URL", ""), "max_connections": 10_000, "socket_timeout": 15}
                    ],
                    "capacity": 100_000,
                },
            }
        },
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="of no use",
        INSTALLED_APPS=[],
        DATABASES={},
        LOGGING_CONFIG=None,
    )
    django.setup()

from channels.generic.websocket import AsyncWebsocketConsumer
from channels.layers import get_channel_layer
from channels.routing import ProtocolTypeRouter

from bench.said import ENDING, crc_of, now_us, token

ASKED = "bench:asked"
TOGETHER = 64  # sends at once: each takes a connection


class GroupConsumer(AsyncWebsocketConsumer):
    async def connect(self) -> None:
        await self.accept()
        await self.send(text_data=json.dumps({"type": "session.created"}))

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        answer = uuid.uuid4().hex
        await self.channel_layer.group_add(answer, self.channel_name)
        await self.send(text_data=json.dumps({"type": "response.created", "response_id": answer}))
        async with redis.asyncio.Redis.from_url(os.environ["REDIS_URL"]) as client:
            await client.rpush(ASKED, answer)

    async def say(self, event: dict[str, Any]) -> None:
        await self.send(text_data=json.dumps(event["frame"]))


async def nothing_here(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


application = ProtocolTypeRouter({"http": nothing_here, "websocket": GroupConsumer.as_asgi()})


async def speak(answers: list[str], tokens: int, rate: float) -> dict[str, Any]:
    """A step is one `group_send` an answer, all of a step at once."""
    layer = get_channel_layer()
    assert layer is not None
    together = asyncio.Semaphore(TOGETHER)

    async def send(answer: str, frame: dict[str, Any]) -> None:
        async with together:
            await layer.group_send(answer, {"type": "say", "frame": frame})

    said = dict.fromkeys(answers, 0)
    late = 0
    began = due = time.monotonic()
    for number in range(tokens):
        due += 1 / rate
        if (left := due - time.monotonic()) > 0:
            await asyncio.sleep(left)
        elif left < -1 / rate:
            late += 1
        at = now_us()
        text = token(number, at)
        frames = []
        for answer in answers:
            said[answer] = crc_of(text, said[answer])
            frame = {
                "type": "response.output_text.delta",
                "response_id": answer,
                "first_seq": number + 1,
                "seq": number + 1,
                "delta": text,
            }
            frames.append(send(answer, frame))
        await asyncio.gather(*frames)
    seconds = time.monotonic() - began
    await asyncio.sleep(2.0)  # an end that overtook the rest would look like a loss
    for answer in answers:
        last = {"type": "response.incomplete", "response_id": answer, "finish_reason": ENDING}
        await send(answer, last)
    return {"steps": tokens, "seconds": seconds, "late steps": late, "said": said}


async def generate(folder: Path, tokens: int, rate: float) -> None:
    async with redis.asyncio.Redis.from_url(os.environ["REDIS_URL"]) as client:
        while not (folder / "go").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        answers = [answer.decode() for answer in await client.lrange(ASKED, 0, -1)]
    found = await speak(answers, tokens, rate)
    part = folder / "engine.part"
    part.write_text(json.dumps(found))
    part.replace(folder / "engine.json")
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--rate", type=float, default=20.0)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    asyncio.run(generate(args.folder, args.tokens, args.rate))


if __name__ == "__main__":
    main()
