"""What an operator may ask the planner, as the fields of an address: nothing is stored, a link holds all choices."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError

from chatapp.streaming import workers
from chatapp.streaming.connection import AWAY
from chatapp.streaming.lengths import running_lengths
from engine import kv_plan
from engine.kv_plan import KvShape, ModelError, PlanError
from engine.protocol import WorkerDetails, served_models

TYPED = "-typed"
# Known by their published config.json. Names of served models begin with a letter or digit, so none can be meant here.
KNOWN = {
    "-smollm2-135m": ("SmolLM2 135M", KvShape(30, 3, 64, 8192)),
    "-qwen2.5-7b": ("Qwen2.5 7B", KvShape(28, 4, 128, 32_768)),
    "-mistral-7b": ("Mistral 7B v0.3", KvShape(32, 8, 128, 32_768)),
    "-qwen3-8b": ("Qwen3 8B", KvShape(36, 8, 128, 40_960)),
    "-llama-3.1-8b": ("Llama 3.1 8B", KvShape(32, 8, 128, 131_072)),
    "-llama-3.1-70b": ("Llama 3.1 70B", KvShape(80, 8, 128, 131_072)),
    "-opt-13b": ("OPT 13B, as in the PagedAttention paper", KvShape(40, 40, 128, 2048)),
}
KV_KINDS = {
    "bfloat16": "16 bits: bfloat16, float16",
    "float32": "32 bits: float32",
    "int8": "8 bits: int8, on a CPU",
    "int8-torch": "8 bits: int8, on a GPU",
    "fp8": "8 bits: fp8, on a GPU",
}
FIXED, SPREAD, RUNNING = "fixed", "spread", "running"
LENGTHS = {FIXED: "These", SPREAD: "A spread", RUNNING: "What runs now"}
ALL_WORKERS = "all"
MOST_MEMORY = 2**50
MOST_TYPED = 500
MOST_TIMES = 1_000_000
ONE_LENGTH = re.compile(r"([0-9]{1,9})(?:\s*[x×*]\s*([0-9]{1,7}))?")  # noqa: RUF001  the sign that people write

DEFAULTS: dict[str, str] = {
    "layers": "32", "kv_heads": "8", "head_dim": "128", "context": "8192", "ranks": "1",
    "memory": "1GiB", "kv": "bfloat16", "block": str(kv_plan.DEFAULT_BLOCK_SIZE), "shared": "512",
    "lengths": SPREAD, "tokens": "32, 50, 17, 80", "median": "900", "high": "4000", "worker": ALL_WORKERS,
}  # fmt: skip


@dataclass(frozen=True)
class Choices:
    """A question that has an answer. `shape`: of one rank. `source`: where the lengths are from, in words."""

    model: str
    shape: KvShape
    ranks: int
    memory: int
    kind: str
    block_size: int
    prefix: int
    lengths: Counter[int]
    shown: list[int]
    source: str


class PlannerForm(forms.Form):
    model = forms.ChoiceField(label="Model")
    layers = forms.IntegerField(label="Layers", min_value=1, max_value=1000)
    kv_heads = forms.IntegerField(label="KV heads", min_value=1, max_value=1024)
    head_dim = forms.IntegerField(label="Head size", min_value=1, max_value=4096)
    context = forms.IntegerField(label="Context, tokens", min_value=1, max_value=100_000_000)
    ranks = forms.IntegerField(label="GPUs that share the model", min_value=1, max_value=1024)
    memory = forms.CharField(label="Memory for the KV pool", max_length=40)
    kv = forms.ChoiceField(label="Keys and values in", choices=list(KV_KINDS.items()))
    block = forms.IntegerField(label="Tokens a block", min_value=1, max_value=kv_plan.MAX_BLOCK_SIZE)
    shared = forms.IntegerField(label="First tokens that all share", min_value=0, max_value=100_000_000)
    lengths = forms.ChoiceField(label="Lengths, prompt and answer", choices=list(LENGTHS.items()))
    tokens = forms.CharField(label="Tokens of each", max_length=4000)
    median = forms.IntegerField(label="Half are up to, tokens", min_value=1, max_value=100_000_000)
    high = forms.IntegerField(label="95 % are up to, tokens", min_value=1, max_value=100_000_000)
    worker = forms.ChoiceField(label="Worker")

    def __init__(self, asked: dict[str, str]) -> None:
        self.served = served()
        self.workers = _workers()
        first = next(iter(self.served), "-smollm2-135m")
        super().__init__({"model": first, **DEFAULTS, **asked})
        self._choose("model", [
            *((name, name) for name in self.served),
            *((name, label) for name, (label, _) in KNOWN.items()),
            (TYPED, "Other: type its numbers"),
        ])  # fmt: skip
        alive = [(one.id, f"{one.id} · {one.model}, {one.running} running") for one in self.workers]
        self._choose("worker", [(ALL_WORKERS, "All workers"), *alive])
        self.fields["worker"].error_messages["invalid_choice"] = "That worker is gone; choose another."

    def _choose(self, name: str, choices: list[tuple[str, str]]) -> None:
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)
        field.choices = choices

    def clean_memory(self) -> int:
        size = _or_invalid(kv_plan.parse_size, self.cleaned_data["memory"])
        if size > MOST_MEMORY:
            raise ValidationError("No machine has more than 1,024 TiB; give less.")
        return int(size)

    def clean_tokens(self) -> list[tuple[int, int]]:
        """(length, times), in the order in which they were typed."""
        found = []
        for word in re.split(r"[,;\n]+|(?<![x×*\s])\s+(?![x×*\s])", self.cleaned_data["tokens"]):  # noqa: RUF001
            if not word.strip():
                continue
            match = ONE_LENGTH.fullmatch(word.strip())
            length, times = (int(match[1]), int(match[2] or 1)) if match else (0, 0)
            if length < 1 or not 1 <= times <= MOST_TIMES:
                raise ValidationError(
                    f"“{word.strip()[:40]}” is no length; write tokens like 32, 50, or 100x3 for three of 100."
                )
            found.append((length, times))
        if not found:
            raise ValidationError("Write at least one length, in tokens.")
        if len(found) > MOST_TYPED:
            raise ValidationError(f"{len(found)} lengths are too many; write {MOST_TYPED} at most, or choose a spread.")
        return found

    def clean(self) -> dict[str, Any]:
        """What fields say together; `choices` is the whole question, there where all of them are right."""
        data = super().clean() or self.cleaned_data
        shape = self._shape(data)
        if shape is None:
            return data
        try:
            shape = kv_plan.of_a_rank(shape, data.get("ranks", 1))
        except PlanError as error:
            self.add_error("ranks", str(error))
        lengths, shown, source = self._lengths(data, shape)
        if self.errors:
            return data
        try:
            kv_plan.blocks_that_fit(data["memory"], data["block"], kv_plan.token_bytes(shape, data["kv"]))
        except PlanError as error:
            self.add_error("memory", str(error))
            return data
        data["choices"] = Choices(
            model=self._model_in_words(data["model"], shape),
            shape=shape,
            ranks=data["ranks"],
            memory=data["memory"],
            kind=data["kv"],
            block_size=data["block"],
            prefix=data["shared"],
            lengths=lengths,
            shown=shown,
            source=source,
        )
        return data

    def _model_in_words(self, model: str, shape: KvShape) -> str:
        if model in self.served:
            return model
        if model in KNOWN:
            return KNOWN[model][0]
        layers, heads = shape.layers, shape.kv_heads
        return f"{layers} layer{'s'[: layers != 1]}, {heads} KV head{'s'[: heads != 1]} of {shape.head_dim}"

    def _shape(self, data: dict[str, Any]) -> KvShape | None:
        model = data.get("model")
        numbers = ("layers", "kv_heads", "head_dim", "context")
        if model != TYPED:
            for name in numbers:  # what stands in fields that are not shown bothers nobody
                self.errors.pop(name, None)
        if model in KNOWN and model not in self.served:
            return KNOWN[model][1]
        if model == TYPED:
            return None if any(name not in data for name in numbers) else KvShape(*(data[name] for name in numbers))
        if model is None:
            return None
        try:
            return _read(self.served[model])
        except ModelError:
            self.add_error("model", f"This process cannot read the files of {model}; type its numbers instead.")
            return None

    def _lengths(self, data: dict[str, Any], shape: KvShape) -> tuple[Counter[int], list[int], str]:
        """How many have which length, which of them to show as blocks, and where they are from."""
        way = data.get("lengths")
        for name, of in (("tokens", FIXED), ("median", SPREAD), ("high", SPREAD), ("worker", RUNNING)):
            if way != of:
                self.errors.pop(name, None)
        if any(name in self.errors for name in ("lengths", "tokens", "median", "high", "worker")):
            return Counter(), [], ""
        if way == FIXED:
            typed = Counter[int]()
            for length, times in data["tokens"]:
                typed[length] += times
            if max(typed) > shape.context:
                self.add_error(
                    "tokens", f"{max(typed):,} tokens are more than the model's context of {shape.context:,}."
                )
            return typed, list(typed), "as typed"
        if way == SPREAD:
            median, high = data["median"], data["high"]
            if high < median:
                self.add_error("high", "This cannot be below the length that half of them have.")
            source = f"half up to {median:,} tokens, 95 % up to {high:,} (log-normal)"
            lengths = kv_plan.spread(median, high, shape.context)
        else:
            wanted = data["worker"]
            lengths = running_lengths(one.id for one in self.workers if wanted in (ALL_WORKERS, one.id))
            who = "all workers" if wanted == ALL_WORKERS else f"worker {wanted}"
            source = f"what runs now on {who}"
            if not lengths:
                self.add_error("worker", "Nothing runs there now; ask again while there is work, or choose a spread.")
                return lengths, [], source
            lengths = Counter(min(length, shape.context) for length in lengths.elements())
        shown = [kv_plan.percentile(lengths, share) for share in (0.05, 0.25, 0.5, 0.75, 0.95)]
        return lengths, list(dict.fromkeys(shown)), source


def served() -> dict[str, str]:
    """Name -> path of the models that this site serves."""
    if settings.OCTAVO_MODELS:
        return served_models(settings.OCTAVO_MODELS)
    return {settings.OCTAVO_MODEL_NAME: settings.OCTAVO_MODEL} if settings.OCTAVO_MODEL else {}


def known_shapes() -> dict[str, KvShape]:
    """Of every model that can be chosen by name and read."""
    found = {name: shape for name, (_, shape) in KNOWN.items()}
    for name, path in served().items():
        with contextlib.suppress(ModelError):
            found[name] = _read(path)
    return found


def _workers() -> list[WorkerDetails]:
    try:
        return workers.live()
    except AWAY:
        return []  # the planner needs none


def _read(path: str) -> KvShape:
    try:
        changed = Path(path).expanduser().stat().st_mtime_ns
    except OSError:
        changed = 0
    return _read_as_of(path, changed)


@lru_cache(maxsize=32)
def _read_as_of(path: str, changed: int) -> KvShape:
    """The header of a GGUF file takes a moment to read, and a slider asks many times."""
    return kv_plan.read_shape(path)


def _or_invalid(function: Any, text: str) -> Any:
    try:
        return function(text)
    except PlanError as error:
        raise ValidationError(str(error)) from None
