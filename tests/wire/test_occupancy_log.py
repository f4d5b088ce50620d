"""The two streams of a worker's block table: how much of them is kept, and that nothing wrong comes of lost words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import redis

from engine import occupancy_log, protocol
from engine.bus import connect
from engine.occupancy_log import LINE_LENGTH, MOST_BYTES, MOST_WAITING_BYTES, Entry, OccupancyLog
from engine.occupancy_wire import Figures

WORKER = "w1"
KEY, LINE = protocol.occupancy_key(WORKER), protocol.line_key(WORKER)
MINUTE = 60_000
START = 1_800_000_000_000


@pytest.fixture
def server(redis_url: str) -> Iterator[redis.Redis]:
    client = connect(redis_url)
    client.flushall()
    yield client
    client.close()


class Writer:
    """A bus that has nothing else to do. Frames are numbered; a whole one comes every `changes` + 1."""

    def __init__(self, server: redis.Redis, changes: int = 9) -> None:
        self.server = server
        self.log = OccupancyLog(WORKER)
        self.changes = changes
        self.number = 0

    def frame(
        self, at_ms: int, *, whole: bool | None = None, size: int = 100, anew: bool = False, used: int = 0
    ) -> None:
        whole = self.number % (self.changes + 1) == 0 if whole is None else whole
        self.number += 1
        figures = Figures(used=used or self.number)
        if anew:
            self.log.begin_anew()
        self.log.add(Entry(at_ms, self.number, whole, figures, b"w" if whole else b"c", bytes(size)))

    def write(self, now_ms: int) -> None:
        pipe = self.server.pipeline(transaction=False)
        self.log.write(pipe, now_ms)
        self.log.written(pipe.execute(raise_on_error=False))

    def heads(self) -> str:
        """w for a whole frame, c for a change, in the order of the stream."""
        entries: Any = self.server.xrange(KEY)
        return "".join(fields[b"head"].decode() for _, fields in entries)

    def numbers(self) -> list[int]:
        entries: Any = self.server.xrange(KEY)
        return [int(name.decode().partition("-")[2]) for name, _ in entries]

    def line(self) -> list[dict[str, Any]]:
        entries: Any = self.server.xrange(LINE)
        return [msgspec.json.decode(fields[b"line"]) for _, fields in entries]


def test_half_an_hour_is_kept_from_a_whole_frame_on(server: redis.Redis) -> None:
    writer = Writer(server)
    for place in range(450):  # ten minutes a hundred frames
        writer.frame(START + place * MINUTE // 10)
        writer.write(START + place * MINUTE // 10)
    entries: Any = server.xrange(KEY)
    first = int(entries[0][0].decode().partition("-")[0])
    now = START + 449 * MINUTE // 10
    assert 30 * MINUTE <= now - first <= 32 * MINUTE
    assert writer.heads().startswith("wccc")
    assert writer.numbers()[-1] == 450


def test_of_too_many_bytes_the_oldest_changes_go_first_and_then_whole_frames(server: redis.Redis) -> None:
    writer = Writer(server, changes=3)
    size = MOST_BYTES // 40
    for place in range(48):
        writer.frame(START + place * 1000, size=size)
        writer.write(START + place * 1000)
    assert writer.heads() == "w" * 3 + "wccc" * 9, "40 fit, or nearly; one could see what was, a minute at a time"
    for place in range(48, 200):
        writer.frame(START + place * 1000, size=size, whole=place % 2 == 0)
        writer.write(START + place * 1000)
    heads = writer.heads()
    assert 36 <= len(heads) <= 41
    assert heads.endswith("wc")


def test_the_newest_whole_frame_and_all_behind_it_stay_however_many_bytes_that_are(server: redis.Redis) -> None:
    writer = Writer(server, changes=1000)
    for place in range(30):
        writer.frame(START + place * MINUTE * 2, size=MOST_BYTES // 20)
        writer.write(START + place * MINUTE * 2)
    assert writer.heads() == "w" + "c" * 29


def test_what_was_written_and_not_acknowledged_is_written_again_and_is_there_once(server: redis.Redis) -> None:
    writer = Writer(server)
    writer.frame(START)
    writer.frame(START + 200)
    pipe = server.pipeline(transaction=False)
    writer.log.write(pipe, START)
    pipe.execute(raise_on_error=False)  # and the answer is lost with the connection
    writer.frame(START + 400)
    writer.write(START + 400)
    assert writer.numbers() == [1, 2, 3]
    assert not writer.log.lost
    assert writer.heads() == "wcc"


def test_a_server_without_memory_loses_changes_until_a_whole_frame_makes_up(server: redis.Redis) -> None:
    writer = Writer(server)
    writer.frame(START)
    writer.write(START)
    used: Any = server.info("memory")["used_memory"]
    server.config_set("maxmemory", used // 2)
    try:
        writer.frame(START + 200)
        writer.write(START + 200)
        assert writer.log.lost
    finally:
        server.config_set("maxmemory", 0)
    writer.frame(START + 400)
    writer.write(START + 400)
    assert writer.numbers() == [1], "a change without the one before it is of no use"
    writer.frame(START + 600, whole=True)
    writer.write(START + 600)
    assert not writer.log.lost
    assert writer.numbers() == [1, 4]


def test_while_the_server_is_away_a_bounded_number_of_bytes_waits(server: redis.Redis) -> None:
    writer = Writer(server, changes=1000)
    for place in range(50):
        writer.frame(START + place, size=MOST_WAITING_BYTES // 10)
    assert writer.log.lost
    assert not writer.log.has_work(START) or not writer.log._waiting
    writer.frame(START + 100, whole=True)
    writer.write(START + 100)
    assert writer.numbers() == [51]


def test_the_line_has_a_point_every_two_seconds_and_ends_with_how_it_was_in_the_end(server: redis.Redis) -> None:
    writer = Writer(server, changes=1000)
    for place in range(26):  # five seconds
        writer.frame(START + place * 200, used=place + 1)
        writer.write(START + place * 200)
    assert [point["at_ms"] - START for point in writer.line()] == [0, 2000, 4000]
    assert writer.log.has_work(START + 6000)
    writer.write(START + 6000)  # nothing has changed since, and the heartbeat comes by
    assert [point["at_ms"] - START for point in writer.line()] == [0, 2000, 4000, 5000]
    assert writer.line()[-1]["figures"]["used"] == 26
    assert writer.line()[-1]["number"] == 26
    assert not writer.log.has_work(START + 8000)
    assert server.xlen(LINE) <= LINE_LENGTH


def test_nothing_that_was_said_before_is_kept_when_all_begins_anew(server: redis.Redis) -> None:
    writer = Writer(server)
    for place in range(5):
        writer.frame(START + place * 3000)
        writer.write(START + place * 3000)
    writer.frame(START + 20_000)  # has not been written yet
    writer.frame(START + 20_200, whole=True, anew=True, used=77)
    writer.write(START + 20_200)
    assert writer.numbers() == [7]
    assert [point["figures"]["used"] for point in writer.line()] == [77]
    assert all(0 < server.ttl(key) <= occupancy_log.EXPIRE_S for key in (KEY, LINE))


def cut(writer: Writer, now_ms: int, *, arrives: bool) -> None:
    """Write over a connection that is killed before the commands arrive, or before their answers do."""
    pipe = writer.server.pipeline(transaction=False)
    kill = "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no"
    if not arrives:
        pipe.execute_command(*kill)
    writer.log.write(pipe, now_ms)
    if arrives:
        pipe.execute_command(*kill)
        pipe.ping()
    with pytest.raises(redis.ConnectionError):
        pipe.execute(raise_on_error=False)


@pytest.mark.parametrize("arrives", [False, True])
def test_the_order_to_begin_anew_survives_a_lost_connection_and_lost_frames(server: redis.Redis, arrives: bool) -> None:
    writer = Writer(server, changes=1000)
    for place in range(5):
        writer.frame(START + place * 3000)
        writer.write(START + place * 3000)
    writer.frame(START + 20_000, whole=True, anew=True)
    cut(writer, START + 20_000, arrives=arrives)
    assert writer.log.owes_deletion
    assert writer.numbers() == [6] if arrives else writer.numbers() == [1, 2, 3, 4, 5]
    for place in range(12):  # more than may wait
        writer.frame(START + 20_200 + place, size=MOST_WAITING_BYTES // 10)
    assert writer.log.lost
    assert not writer.log._waiting
    assert writer.log.has_work(START + 20_300)
    writer.write(START + 20_300)
    assert not writer.log.owes_deletion
    assert writer.numbers() == []
    assert all(point["number"] > 6 for point in writer.line()), "a state of after it, though its frame was lost"
    writer.frame(START + 20_400, whole=True)
    writer.write(START + 20_400)
    assert writer.numbers() == [19]


def test_all_begins_anew_though_no_frame_comes_and_the_server_has_no_memory(server: redis.Redis) -> None:
    writer = Writer(server)
    writer.frame(START)
    writer.write(START)
    writer.frame(START + 200)
    writer.log.begin_anew()
    used: Any = server.info("memory")["used_memory"]
    server.config_set("maxmemory", used // 2)
    try:
        assert writer.log.has_work(START + 300)
        writer.write(START + 300)
    finally:
        server.config_set("maxmemory", 0)
    assert not server.exists(KEY, LINE)
    assert (writer.log.owes_deletion, writer.log.lost) == (False, True)


def test_a_point_of_the_line_that_was_lost_with_the_connection_is_said_again(server: redis.Redis) -> None:
    writer = Writer(server)
    writer.frame(START, used=3)
    cut(writer, START, arrives=False)
    writer.write(START + 100)
    assert [point["figures"]["used"] for point in writer.line()] == [3]


def test_both_streams_go_an_hour_after_the_last_word(server: redis.Redis) -> None:
    writer = Writer(server)
    writer.frame(START)
    writer.write(START)
    server.expire(KEY, 100)
    assert not writer.log.has_work(START + 30_000)
    assert writer.log.has_work(START + MINUTE), "the worker lives, though nothing has changed"
    writer.write(START + MINUTE)
    assert [server.ttl(key) > 3500 for key in (KEY, LINE)] == [True, True]
