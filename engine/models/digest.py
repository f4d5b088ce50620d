"""Cheap fingerprints of large weight files: what they are made of, not when they were written.

A digest covers a file's size, its first 64 KiB (for safetensors and GGUF most of the header) and 256 samples of 4 KiB
spread evenly over the rest, so it reads about 1 MiB of a file of any size. Training, quantizing, merging or converting
changes values all over the file and so changes the digest; flipping a few bytes by hand between two samples does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

HEAD = 64 * 1024
SAMPLE = 4096
SAMPLES = 256


def digest_files(paths: Iterable[Path]) -> str:
    """32 hex digits over the named files, in the order given. Names count by their last part only."""
    total = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        total.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb", buffering=0) as file:
            total.update(file.read(HEAD))
            for i in range(SAMPLES):
                file.seek(HEAD + max(0, size - HEAD - SAMPLE) * i // (SAMPLES - 1))
                total.update(file.read(SAMPLE))
    return total.hexdigest()[:32]
