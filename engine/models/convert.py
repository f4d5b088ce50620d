"""`python -m engine.models.convert SOURCE.gguf DEST`: a GGUF file as a folder that loads in two seconds.

DEST gets float32 safetensors, the file's own low-bit weights (engine.models.low_bit), config.json,
generation_config.json, tokenizer.json, tokenizer_config.json, the chat template and `octavo.json`, a manifest with the
source's digest and the SHA-256 of both (engine.models.identity). Work goes to a temporary folder beside DEST that is
renamed at the end, so a killed conversion leaves nothing half-made; two at once wait for each other; where the manifest
already matches nothing is done. Config and tokenizer come through transformers, the weights through `gguf_file`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.models.config import ModelError
from engine.models.digest import digest_files
from engine.models.identity import MANIFEST, of_file, of_folder

# Part of the manifest: raise it when a conversion of the same source comes out differently.
FORMAT = 3
SHARD_BYTES = 2 * 1024**3


def convert(source: Path, folder: Path, report: Callable[[str], None] = lambda line: None) -> Path:
    """Make `folder` hold the model in `source`; returns `folder`. ModelError when `source` is no usable GGUF file."""
    source, folder = source.expanduser().resolve(), folder.expanduser().resolve()
    if not source.is_file():
        raise ModelError(f"{source} does not exist." if not source.exists() else f"{source} is not a file.")
    manifest = {"format": FORMAT, "source": source.name, "digest": digest_files([source])}
    if _fits(folder, manifest):
        return folder
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder} is in the way: it is not a folder.")
    if folder.is_dir() and any(folder.iterdir()) and _manifest(folder) is None:
        raise ModelError(f"{folder} holds something that no conversion made; choose another folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f".{folder.name}.lock")):
        if _fits(folder, manifest):  # made by another process while this one waited
            return folder
        for leftover in folder.parent.glob(f".{folder.name}.part-*"):
            shutil.rmtree(leftover)
        part = folder.with_name(f".{folder.name}.part-{os.getpid()}")
        old = part.with_name(f"{part.name}-old")
        part.mkdir()
        try:
            _write(source, part, report)
            said = {**manifest, "source_sha256": of_file(source), "sha256": of_folder(part)}
            (part / MANIFEST).write_text(json.dumps(said, indent=2) + "\n")
            if folder.exists():
                folder.rename(old)
            part.rename(folder)
        except OSError as error:
            raise ModelError(f"{folder} cannot be written ({error}); make room, or choose another folder.") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
    return folder


def _fits(folder: Path, manifest: dict[str, Any]) -> bool:
    found = _manifest(folder)
    return found is not None and manifest.items() <= found.items()


def _manifest(folder: Path) -> dict[str, Any] | None:
    try:
        data = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(source: Path, part: Path, report: Callable[[str], None]) -> None:
    from engine.models.gguf_file import GgufFile
    from engine.models.low_bit import save_tiles

    start = time.monotonic()

    def say(text: str) -> None:
        report(f"[{time.monotonic() - start:5.1f} s] {text}")

    say(f"reading {source.name} ({source.stat().st_size / 1e6:.0f} MB)")
    file = GgufFile(source)
    say("config")
    config = _write_config(source, file, part)
    say("tokenizer")
    _write_tokenizer(source, file, part, say)
    _write_weights(file, part, say)
    say("low-bit weights")
    save_tiles(file.low_bit(), part)
    say(
        f"done: {config['num_hidden_layers']} layers, hidden {config['hidden_size']}, vocabulary {config['vocab_size']}"
    )


def _write_config(source: Path, file: Any, part: Path) -> dict[str, Any]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoConfig

    config = _read(AutoConfig, source).to_diff_dict()
    config = {key: value for key, value in config.items() if not key.startswith("_")}
    config["dtype"] = "float32"
    config["architectures"] = [f"{file.architecture.capitalize()}ForCausalLM"]
    # Said in full, because the default differs between families.
    config["tie_word_embeddings"] = not file.has("output.weight")
    head_dim = file.field(f"{file.architecture}.attention.key_length")
    if head_dim is not None:  # transformers leaves it out for some architectures
        config["head_dim"] = int(head_dim)
    factors = file.rope_factors()
    if factors is not None:
        # Kept as numbers: the parameters that they were made from are not in the file.
        config["octavo_rope_factors"] = [float(value) for value in factors]
    _dump(part / "config.json", config)
    generation = {key: config.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _dump(part / "generation_config.json", {key: value for key, value in generation.items() if value is not None})
    return config


def _read(kind: Any, source: Path) -> Any:
    """AutoConfig or AutoTokenizer out of the GGUF file."""
    try:
        return kind.from_pretrained(str(source.parent), gguf_file=source.name)
    except Exception as error:  # whatever an unusual file leads that library to
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{source} cannot be converted: transformers does not read its metadata ({reason}).") from None


def _dump(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_tokenizer(source: Path, file: Any, part: Path, say: Callable[[str], None]) -> None:
    from transformers import AutoTokenizer

    _read(AutoTokenizer, source).save_pretrained(str(part))
    if file.field("tokenizer.ggml.model") == "gpt2":
        _repair_pre_tokenizer(part / "tokenizer.json", file.field("tokenizer.ggml.pre", "default"), say)
    settings = part / "tokenizer_config.json"
    data = json.loads(settings.read_text(encoding="utf-8"))
    for key in ("is_local", "local_files_only"):
        data.pop(key, None)
    _dump(settings, data)


# How text is cut before byte-pair merging. transformers 5 reads the merges of a GGUF file but not this, and uses
# GPT-2's cut for all; other models were trained with another one, and would see tokens they do not expect.
_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CUTS = {"qwen2": _LETTERS + r"\p{N}" + _REST, "llama-bpe": _LETTERS + r"\p{N}{1,3}" + _REST}


def _repair_pre_tokenizer(path: Path, kind: str, say: Callable[[str], None]) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    gpt2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    if kind in ("gpt-2", "default"):
        steps = [gpt2]
    elif kind == "smollm":
        steps = [{"type": "Digits", "individual_digits": True}, gpt2]
    elif kind in _CUTS:
        cut = {"type": "Split", "pattern": {"Regex": _CUTS[kind]}, "behavior": "Isolated", "invert": False}
        steps = [cut, {**gpt2, "use_regex": False}]
        data["model"]["ignore_merges"] = kind == "llama-bpe"
        data["normalizer"] = {"type": "NFC"} if kind == "qwen2" else None
    else:
        say(f"the file's pre-tokenizer {kind!r} is unknown here; text may be cut differently than in training")
        return
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def _write_weights(file: Any, part: Path, say: Callable[[str], None]) -> None:
    """Shards of about 2 GiB, so memory stays bounded; the index names each weight's shard when there are several."""
    from safetensors.numpy import save_file

    shards: list[list[str]] = []
    pending: dict[str, Any] = {}
    size = total = 0

    def flush() -> None:
        nonlocal pending, size
        path = part / f"shard-{len(shards)}"
        save_file(pending, path, metadata={"format": "pt"})
        path.chmod(0o644)
        shards.append(list(pending))
        pending, size = {}, 0

    tenth = max(1, file.num_tensors // 10)
    for count, (name, values) in enumerate(file.weights(), 1):
        pending[name] = values.copy()
        size += values.nbytes
        total += values.nbytes
        if size >= SHARD_BYTES:
            flush()
        if count % tenth == 0:
            say(f"weights {100 * count // file.num_tensors} %")
    if pending:
        flush()
    if len(shards) == 1:
        (part / "shard-0").rename(part / "model.safetensors")
        return
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for i, name in enumerate(names):
        (part / f"shard-{i}").rename(part / name)
    where = {weight: name for name, weights in zip(names, shards, strict=True) for weight in weights}
    _dump(part / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 2:
        print("usage: python -m engine.models.convert SOURCE.gguf DEST", file=sys.stderr)  # noqa: T201
        return 2
    try:
        convert(Path(arguments[0]), Path(arguments[1]), lambda line: print(line, flush=True))  # noqa: T201
    except (ModelError, OSError) as error:
        print(f"Cannot convert {arguments[0]}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
