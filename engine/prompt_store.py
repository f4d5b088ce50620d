"""Published prompts' KV on disk, so that a restarted worker is warm at once.

Owns a folder with one file a prompt. A file is named by a keyed digest over the model's revision, the layout of its KV
and the prompt's tokens with their salts, and sealed by one over the KV too. Promises:

- what is loaded was saved for the same revision, layout, salts and tokens, bit by bit: the name narrows the search,
  then the tokens are compared and the seal is checked. Whoever does not know the salts can neither find nor forge one;
- a file's name begins with its tenant's tag, so that all of a tenant's can be deleted (`forget`);
- salts are tenants' secrets: no file holds them. The KV and the token ids are there for the folder's owner alone to
  read (files 0600, folder 0700);
- a file is there whole or not at all, whoever writes or is killed. Together they take at most `most_bytes`; the ones
  unused for longest go first. Only files with such names are ever touched;
- a file that is damaged, foreign or unreadable is one warning in the log, and counts as not there until it is saved
  anew; so is one that cannot be written. Nothing is raised.

The files are safetensors: `tokens`, int32 [n], `seal`, and `kv`, the raw bytes of blocks as the runner gives them. It
knows neither the pool nor the cache. All methods may be called from any thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import stat
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

from engine.protocol import owner_tag
from engine.sequence import Content

log = structlog.get_logger(__name__)

FORMAT = "octavo.prompt/2"
"""To be changed whenever the same layout comes to hold other numbers, for example other rotary angles."""
UNOWNED = b'"format":"octavo.prompt/1"'
"""In the head of files whose names do not say whose they are; these are deleted."""
QUEUED_BYTES = 256 << 20
"""KV that may wait in memory to be written; what comes beyond is not saved this time."""
LEFT_OVER_S = 120.0
"""An unfinished file of this age has nobody any more who writes it."""
OURS = re.compile(r"[0-9a-f]{64}\.safetensors")
UNFINISHED = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{16}\.part")


@dataclass(frozen=True, slots=True)
class PromptKey:
    """What a prompt is found by: its file's `name`, the packed token ids, and the key of its seal."""

    name: str
    tokens: bytes
    secret: bytes = field(repr=False)


class PromptStore:
    """The prompts of one `revision` of a model whose blocks are `block_bytes` of `layout`, `block_size` tokens each.

    Makes the folder. Raises OSError when it cannot.
    """

    def __init__(
        self, folder: str | Path, *, revision: str, layout: str, block_size: int, block_bytes: int, most_bytes: int
    ) -> None:
        self.folder = Path(folder)
        self.block_size = block_size
        self.block_bytes = block_bytes
        self.most_bytes = most_bytes
        self._metadata = {"format": FORMAT, "revision": revision, "layout": layout, "block_size": str(block_size)}
        self._lock = threading.Lock()
        self._queued: dict[str, int] = {}
        """Bytes of the prompts that wait to be written, by name."""
        self._unusable: set[str] = set()
        self._forgotten: set[str] = set()
        """Tags of tenants of whom nothing is written any more."""
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="prompt-store")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sweep()
        self._drop_unowned()

    def key(self, content: Content, tenant: str = "") -> PromptKey:
        """The key of a tenant's prompt with these contents, from its first token on."""
        fields = [*(f"{name}={value}".encode() for name, value in self._metadata.items())]
        for salt, tokens in content:
            fields += [salt.encode(), tokens]
        digest = hashlib.sha256()
        for part in fields:  # each with its length, so that no two lists of fields are the same bytes
            digest.update(struct.pack("<q", len(part)) + part)
        master = digest.digest()
        name = owner_tag(tenant) + hmac.digest(master, b"name", "sha256").hex()[:40]
        return PromptKey(name, b"".join(tokens for _, tokens in content), hmac.digest(master, b"seal", "sha256"))

    def wants(self, key: PromptKey) -> bool:
        """Whether a prompt is neither there nor about to be. One that is there counts as used now."""
        with self._lock:
            if key.name in self._queued or _tag(key.name) in self._forgotten:
                return False
            unusable = key.name in self._unusable
        path = self._path(key)
        if unusable:
            return path.is_file()  # it is replaced; what is no file is left alone
        with contextlib.suppress(OSError):
            os.utime(path)
        return not os.path.lexists(path)

    # --- saving ---------------------------------------------------------------------------------------------------

    def save(self, key: PromptKey, kv: NDArray[np.uint8]) -> bool:
        """Write a prompt's blocks, uint8 [blocks, block_bytes], in the background; the array is the store's now.

        False when it is not going to be: it is larger than all may be, or too much waits already.
        """
        expected = (self._blocks(key), self.block_bytes)
        assert kv.shape == expected, f"the prompt's blocks are {expected}, not {kv.shape}"
        with self._lock:
            waiting = sum(self._queued.values())
            if _tag(key.name) in self._forgotten:
                return False
            if kv.nbytes > self.most_bytes or (waiting and waiting + kv.nbytes > QUEUED_BYTES):
                return False
            self._queued[key.name] = kv.nbytes
        self._writer.submit(self._save, key, kv)
        return True

    def forget(self, tenant: str) -> None:
        """Delete a tenant's prompts, finished and unfinished, and write none of them any more. Returns once it is done.

        Raises OSError when one cannot be deleted.
        """
        tag = owner_tag(tenant)
        with self._lock:
            self._forgotten.add(tag)
        self._writer.submit(self._delete, tag).result()

    def _delete(self, tag: str) -> None:
        for pattern in (OURS, UNFINISHED):
            for name, _ in self._files(pattern):
                if _tag(name) == tag:
                    (self.folder / name).unlink(missing_ok=True)

    def _drop_unowned(self) -> None:
        for name, _ in self._files(OURS):
            with contextlib.suppress(OSError), (self.folder / name).open("rb") as file:
                if UNOWNED in file.read(256):
                    (self.folder / name).unlink(missing_ok=True)

    def flush(self) -> None:
        """Wait until all that waits has been written. (The interpreter does so at its end.)"""
        self._writer.submit(lambda: None).result()

    def _save(self, key: PromptKey, kv: NDArray[np.uint8]) -> None:
        try:
            if _tag(key.name) not in self._forgotten:
                self._write(key, kv)
        except OSError as error:
            log.warning("prompt_store.not_saved", file=key.name[:12], reason=error.strerror or str(error))
        except Exception as error:
            log.warning("prompt_store.not_saved", file=key.name[:12], reason=type(error).__name__)
        finally:
            with self._lock:
                self._queued.pop(key.name, None)

    def _write(self, key: PromptKey, kv: NDArray[np.uint8]) -> None:
        data = kv.data.cast("B")
        head = self._head(key)
        self._make_room(len(head) + len(key.tokens) + hashlib.sha256().digest_size + len(data), key)
        part = self.folder / f"{key.name}.{os.urandom(8).hex()}.part"
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with open(handle, "wb") as file:
                for piece in (head, key.tokens, _seal(key, data), data):
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path(key))
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        with self._lock:
            self._unusable.discard(key.name)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _make_room(self, size: int, key: PromptKey) -> None:
        """Delete the prompts unused for longest, until one of `size` bytes can be added, or replaced."""
        self._sweep()
        files = [(s.st_mtime_ns, s.st_size, name) for name, s in self._files(OURS) if name != self._path(key).name]
        total = sum(length for _, length, _ in files) + sum(s.st_size for _, s in self._files(UNFINISHED))
        for _, length, name in sorted(files):
            if total + size <= self.most_bytes:
                return
            (self.folder / name).unlink(missing_ok=True)
            total -= length
        if total + size > self.most_bytes:
            raise OSError(f"it takes {size} bytes, and all together may take {self.most_bytes}")

    def _sweep(self) -> None:
        """Delete what killed processes left unfinished."""
        long_ago = time.time() - LEFT_OVER_S
        for name, status in self._files(UNFINISHED):
            if status.st_mtime < long_ago:
                (self.folder / name).unlink(missing_ok=True)

    def _files(self, pattern: re.Pattern[str]) -> list[tuple[str, os.stat_result]]:
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if pattern.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):  # another process was quicker
                        found.append((entry.name, entry.stat(follow_symlinks=False)))
        return found

    # --- loading --------------------------------------------------------------------------------------------------

    def load(self, key: PromptKey) -> NDArray[np.uint8] | None:
        """A prompt's blocks, uint8 [blocks, block_bytes]; None when they are not there or cannot be used."""
        path = self._path(key)
        try:
            kv = self._read(path, key)
            os.utime(path)
            return kv
        except FileNotFoundError:
            return None
        except _Unusable as unusable:
            reason = str(unusable)
        except OSError as error:
            reason = error.strerror or type(error).__name__
        except MemoryError:
            reason = "not enough memory"
        with self._lock:
            self._unusable.add(key.name)
        log.warning("prompt_store.ignored", file=key.name[:12], reason=reason)
        return None

    def _read(self, path: Path, key: PromptKey) -> NDArray[np.uint8]:
        head = self._head(key)
        # Read, not mapped: a file that shrinks, or a disk that fails, would end the process otherwise.
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _Unusable("it is no file")
            size = hashlib.sha256().digest_size
            front = bytearray(len(head) + len(key.tokens) + size)
            kv = np.empty((self._blocks(key), self.block_bytes), np.uint8)
            if status.st_size != len(front) + kv.nbytes:
                raise _Unusable(f"it has {status.st_size} bytes, not {len(front) + kv.nbytes}")
            data = kv.data.cast("B")
            if _fill(file.fileno(), memoryview(front)) != len(front) or front[: len(head)] != head:
                raise _Unusable("its head is not that of such a prompt")
            if front[len(head) : -size] != key.tokens:
                raise _Unusable("it has other tokens")
            if _fill(file.fileno(), data) != len(data) or not hmac.compare_digest(front[-size:], _seal(key, data)):
                raise _Unusable("its seal is broken")
            return kv

    # --- the form of a file ---------------------------------------------------------------------------------------

    def _path(self, key: PromptKey) -> Path:
        return self.folder / f"{key.name}.safetensors"

    def _blocks(self, key: PromptKey) -> int:
        return -(-len(key.tokens) // 4 // self.block_size)

    def _head(self, key: PromptKey) -> bytes:
        """The safetensors header. It follows from the key, so a file whose header is any other one is foreign."""
        tensors: dict[str, object] = {"__metadata__": self._metadata}
        start = 0
        for name, dtype, shape, length in (
            ("tokens", "I32", [len(key.tokens) // 4], len(key.tokens)),
            ("seal", "U8", [hashlib.sha256().digest_size], hashlib.sha256().digest_size),
            ("kv", "U8", [self._blocks(key), self.block_bytes], self._blocks(key) * self.block_bytes),
        ):
            tensors[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + length]}
            start += length
        text = json.dumps(tensors, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text


class _Unusable(Exception):
    """Why a file is ignored."""


def _tag(name: str) -> str:
    return name[:24]


def _seal(key: PromptKey, data: memoryview) -> bytes:
    return hmac.digest(key.secret, data, "sha256")


def _fill(handle: int, view: memoryview) -> int:
    """Read until `view` is full or the file ends; how many bytes that were."""
    done = 0
    while done < len(view) and (count := os.readv(handle, [view[done : done + (64 << 20)]])):
        done += count
    return done
