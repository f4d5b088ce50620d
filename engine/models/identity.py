"""Which model this is, byte for byte: one SHA-256 for a GGUF file or a model folder.

Of a file it is the file's own, what sha256sum prints and model hubs publish. Of a folder it is that of a list with a
line for each file that a loader may read, `<sha256>  <name>`, in the order of names: what sha256sum prints for them. A
folder that was converted from a GGUF file goes by that file's as well, as long as it is what the conversion wrote.

engine.models.digest is the cheap cousin, for caches: it samples.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from engine.models.errors import ModelError

MANIFEST = "octavo.json"
READ = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")
HEX = re.compile(r"[0-9a-f]{64}")


def of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def of_folder(folder: Path) -> str:
    names = sorted({file.name for kind in READ for file in folder.glob(kind) if file.is_file()} - {MANIFEST})
    lines = "".join(f"{of_file(folder / name)}  {name}\n" for name in names)
    return hashlib.sha256(lines.encode()).hexdigest()


def of_model(path: Path) -> str:
    """ModelError, one line, where there is nothing to digest."""
    try:
        if path.is_dir():
            return of_folder(path)
        return of_file(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None


def check(path: Path, wanted: str, asked_by: str = "OCTAVO_MODEL_SHA256") -> None:
    """ModelError, one line, unless the model at `path` has the digest `wanted`."""
    wanted = wanted.strip().lower().removeprefix("sha256:")
    if not HEX.fullmatch(wanted):
        raise ModelError(f"{asked_by}={wanted} is no SHA-256: 64 hex digits are needed.")
    found = of_model(path)
    if wanted == found or (path.is_dir() and _converted_from(path) == (wanted, found)):
        return
    raise ModelError(
        f"The model {path} is not the one that {asked_by} asks for: that is {wanted}, this is {found}. "
        f"Fetch it again, or, if this is the one you want, set {asked_by}={found}."
    )


def _converted_from(folder: Path) -> tuple[str, str] | None:
    """What a conversion wrote down: the SHA-256 of the GGUF file, and that of the folder it made."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        return manifest["source_sha256"], manifest["sha256"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
