"""What a model's name means: a local folder, a GGUF file (converted once), or a hub id (downloaded once).

What exists locally is never looked up online; a hub id is tried only when nothing of that name exists and it looks
like one. Loads no torch, so tokenizer and tools may resolve a name cheaply.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from engine.models.config import ModelError
from engine.models.digest import digest_files

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def resolve(
    path: str | Path, *, cache_dir: str | Path | None = None, report: Callable[[str], None] = lambda line: None
) -> Path:
    """The absolute model folder that `path` means. A GGUF file is converted into `cache_dir`, or the user's cache.

    `report` is told the lines of a conversion's progress. ModelError, one line, when there is no such model.
    """
    found = located(path)
    return _converted(found, cache_dir, report) if found.is_file() else found


def located(path: str | Path) -> Path:
    """The absolute model folder or GGUF file that `path` means; ModelError, one line, when there is no such model."""
    local = Path(path).expanduser()
    if local.is_dir():
        return local.resolve()
    if local.is_file():
        with local.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelError(f"{path} is not a model: it is neither a folder with config.json nor a GGUF file.")
        return local.resolve()
    name = str(path)
    if not HUB_ID.fullmatch(name) or name.endswith(".gguf"):
        raise ModelError(f"{path} does not exist; name a model folder, a .gguf file or a hub id like owner/name.")
    return _download(name)


def _converted(source: Path, cache_dir: str | Path | None, report: Callable[[str], None]) -> Path:
    from engine.models.convert import convert

    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo" / "models"
    name = f"{source.stem.lower()}-{digest_files([source])[:8]}"
    return convert(source, Path(cache_dir or default) / name, report)


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=["*.safetensors", "*.json", "*.jinja"]))
    except Exception as error:  # the client raises its own, its HTTP library's and the system's errors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ModelError(f"{hub_id} is no local folder, and the hub did not give it ({reason}).") from None
