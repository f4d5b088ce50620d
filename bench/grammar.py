"""Grammar libraries side by side: time to compile, time of a mask a token, memory, and what each makes of a schema.

    python -m bench.grammar [--model PATH]

Measures those of llguidance and xgrammar that are installed, on the same tokens: answers written by hand, tokenized as
the model would, so that no model runs. A mask is the library's own call into a ready buffer, followed by the token.
The last table is ours: `engine.grammar.apply_masks` on float32 logits.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import re
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from engine.tokenizer import Tokenizer
from ops.setup import MODEL_DIR

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "member": {"type": "boolean"}},
    "required": ["name", "age", "member"],
    "additionalProperties": False,
}
ORDER = {
    "type": "object",
    "properties": {
        "order": {"type": "string"},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "sku": {"type": "string"},
                    "kind": {"enum": ["book", "music", "tool", "toy", "garden", "kitchen"]},
                    "count": {"type": "integer", "minimum": 1, "maximum": 99},
                    "tags": {"type": "array", "items": {"enum": ["new", "sale", "last one"]}, "maxItems": 3},
                },
                "required": ["sku", "kind", "count", "tags"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["order", "items"],
    "additionalProperties": False,
}
LETTER = {
    "type": "object",
    "properties": {"subject": {"type": "string", "maxLength": 100}, "body": {"type": "string"}},
    "required": ["subject", "body"],
    "additionalProperties": False,
}
OPTIONAL = {
    "type": "object",
    "properties": {f"field_{i}": {"type": ["string", "number", "null"]} for i in range(20)},
    "additionalProperties": False,
}
DATED = r"[A-Z]{2,3}-\d{4}-(0[1-9]|1[0-2]) (open|closed|pending)( [a-z]+){0,40}"
PROSE = (
    "The block pool has blocks and each of them is free, cached or used. When a tenant asks a question, its system "
    "prompt is found in the cache, so that only what is new must be computed. Nobody waits for a neighbour's prompt. "
)
ITEM = {"sku": "AB-1029", "kind": "garden", "count": 12, "tags": ["new", "last one"]}
CASES: dict[str, tuple[str, Any, str]] = {
    "flat object": ("json", PERSON, json.dumps({"name": "Zoë Müller", "age": 41, "member": True}, ensure_ascii=False)),
    "nested, enums": ("json", ORDER, json.dumps({"order": "2026-0042", "items": [ITEM] * 6})),
    "long string": ("json", LETTER, json.dumps({"subject": "How blocks are shared", "body": PROSE * 3})),
    "20 optional fields": ("json", OPTIONAL, json.dumps({f"field_{i}": [1.5, "text", None][i % 3] for i in range(20)})),
    "any object": ("any", {"type": "object"}, json.dumps({"a": [1, 2, {"b": "c"}], "text": PROSE, "order": [ITEM]})),
    "regex": ("regex", DATED, "AB-2026-07 pending " + " ".join(re.findall("[a-z]+", PROSE)[:30])),
}
PROBES: dict[str, Any] = {
    "pattern": {"type": "string", "pattern": "^[a-c]+$"},
    "pattern, look-ahead": {"type": "string", "pattern": "^(?=a)[a-c]+$"},
    "format date": {"type": "string", "format": "date"},
    "format unknown": {"type": "string", "format": "colour"},
    "minimum": {"type": "integer", "minimum": 10},
    "multipleOf": {"type": "integer", "multipleOf": 3},
    "maxLength": {"type": "string", "maxLength": 3},
    "uniqueItems": {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
    "contains": {"type": "array", "contains": {"const": 1}},
    "minProperties": {"type": "object", "minProperties": 2},
    "patternProperties": {"type": "object", "patternProperties": {"^x": {"type": "integer"}}},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^x"}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "allOf": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
    "anyOf": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "oneOf": {"oneOf": [{"type": "integer", "minimum": 2}, {"type": "integer", "maximum": 5}]},
    "not": {"type": "string", "not": {"const": "a"}},
    "if/then": {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "recursive $ref": {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}},
    "endless $ref": {"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}},
    "remote $ref": {"$ref": "https://example.org/schema.json"},
    "unknown keyword": {"type": "integer", "colour": "red"},
    "unsatisfiable": {"type": "integer", "minimum": 5, "maximum": 3},
    "false": False,
}
WRONG = {  # texts that the probe's schema forbids; one that a library would write anyway is named in the table
    "pattern": '"d"',
    "pattern, look-ahead": '"b"',
    "format date": '"2026"',
    "minimum": "7",
    "multipleOf": "4",
    "maxLength": '"abcd"',
    "uniqueItems": "[1,1]",
    "contains": "[2]",
    "minProperties": '{"a":1}',
    "patternProperties": '{"x":"y"}',
    "propertyNames": '{"y":1}',
    "dependentRequired": '{"a":1}',
    "allOf": "9",
    "oneOf": "3",
    "not": '"a"',
    "if/then": '{"a":1}',
    "unsatisfiable": "4",
    "false": "1",
}

DEEP: Any = {"type": "integer"}
for _ in range(60):
    DEEP = {"type": "object", "properties": {"a": DEEP, "b": {"type": "string"}}, "required": ["a"]}
HOSTILE: dict[str, tuple[str, Any]] = {
    "(a+)+b": ("regex", "(a+)+b"),
    "((a{1,99}){1,99}){1,99}": ("regex", "((a{1,99}){1,99}){1,99}"),
    "(.*a.{20}){9}": ("regex", "(.*a.{20}){9}"),
    "[ab]*a[ab]{30}c": ("regex", "[ab]*a[ab]{30}c"),
    "60 levels of objects": ("json", DEEP),
    "enum of 20,000": ("json", {"enum": [f"value {i * 7919}" for i in range(20000)]}),
    "maxLength 10**6": ("json", {"type": "string", "minLength": 10**6 - 5, "maxLength": 10**6}),
    "minItems 10**6": ("json", {"type": "array", "minItems": 10**6}),
    "300 optional fields": ("json", {"type": "object", "properties": {f"f{i}": {} for i in range(300)}}),
    "anyOf doubled 14 times": (
        "json",
        {"$ref": "#/$defs/d0", "$defs": {
            **{f"d{i}": {"anyOf": [{"type": "object", "properties": {c: {"$ref": f"#/$defs/d{i + 1}"}}} for c in "ab"]}
               for i in range(14)}, "d14": {"type": "integer"}}},
    ),
    "allOf of 2**10 branches": ("json", {"allOf": [{"anyOf": [{"minimum": i}, {"maximum": 9}]} for i in range(10)]}),
}  # fmt: skip
LIMIT_S = 20


class LLGuidance:
    """A library behind what the measurements need; `mask` writes bits [ceil(V / 32)] int32."""

    name = "llguidance"

    def __init__(self, tokenizer: Tokenizer) -> None:
        import llguidance

        self.library = llguidance
        self.version = importlib.metadata.version(self.name)
        self.tokenizer = llguidance.LLTokenizer(
            tokenizer.backend.to_str(), eos_token=list(tokenizer.eos_token_ids), slices=None
        )

    def compile(self, kind: str, what: Any) -> Any:
        matcher = self.library.LLMatcher
        if kind == "regex":
            grammar = matcher.grammar_from_regex(what)
        else:
            grammar = matcher.grammar_from_json_schema(json.dumps(what))
        made = matcher(self.tokenizer, grammar, log_level=0)
        if made.is_error():
            raise ValueError(made.get_error().strip().splitlines()[0])
        return made

    def start(self, compiled: Any) -> Any:
        return compiled.deep_copy()

    def mask(self, state: Any, row: torch.Tensor) -> None:
        state.unsafe_compute_mask_ptr(row.data_ptr(), row.numel() * 4)

    def accept(self, state: Any, token: int) -> bool:
        return bool(state.consume_token(token))

    def may_end(self, state: Any) -> bool:
        return bool(state.is_accepting())


class XGrammar:
    name = "xgrammar"

    def __init__(self, tokenizer: Tokenizer) -> None:
        import xgrammar

        self.library = xgrammar
        self.version = importlib.metadata.version(self.name)
        size = tokenizer.backend.get_vocab_size()
        words = [tokenizer.backend.id_to_token(i) or "" for i in range(size)]
        self.info = xgrammar.TokenizerInfo(
            words,
            vocab_type=xgrammar.VocabType.BYTE_LEVEL,
            vocab_size=size,
            stop_token_ids=list(tokenizer.eos_token_ids),
        )
        self.compiler = xgrammar.GrammarCompiler(self.info, max_threads=1, cache_enabled=False)

    def compile(self, kind: str, what: Any) -> Any:
        if kind == "regex":
            return self.compiler.compile_regex(what)
        return self.compiler.compile_json_schema(json.dumps(what), strict_mode=False)

    def start(self, compiled: Any) -> Any:
        return self.library.GrammarMatcher(compiled)

    def mask(self, state: Any, row: torch.Tensor) -> None:
        state.fill_next_token_bitmask(row[None], 0)

    def accept(self, state: Any, token: int) -> bool:
        return bool(state.accept_token(token))

    def may_end(self, state: Any) -> bool:
        row = torch.zeros(-(-self.info.vocab_size // 32), dtype=torch.int32)
        state.fill_next_token_bitmask(row[None], 0)
        stop = self.info.stop_token_ids[0]
        return bool(row[stop // 32].item() >> (stop % 32) & 1)


def ms(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    worst = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"{1e3 * statistics.mean(seconds):.3f} / {1e3 * worst:.3f} / {1e3 * ordered[-1]:.3f}"


def resident_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = call()
    return time.perf_counter() - start, value


def walk(library: Any, compiled: Any, tokens: list[int], row: torch.Tensor) -> list[float]:
    """Seconds of mask and accept of each token of one answer; raises when the answer is not allowed."""
    state, times = library.start(compiled), []
    for token in tokens:
        start = time.perf_counter()
        library.mask(state, row)
        accepted = library.accept(state, token)
        times.append(time.perf_counter() - start)
        if not accepted or not int(row[token // 32]) >> (token % 32) & 1:
            raise ValueError(f"token {len(times)} of {len(tokens)} is not allowed")
    return times


def stray(library: Any, compiled: Any, count: int, row: torch.Tensor) -> list[float]:
    """The same where each token is drawn evenly from the allowed ones: what a model at a loss would write."""
    chance, times, state = np.random.default_rng(0), [], library.start(compiled)
    for _ in range(count):
        start = time.perf_counter()
        library.mask(state, row)
        taken = time.perf_counter() - start
        allowed = np.flatnonzero(np.unpackbits(row.numpy().view(np.uint8), bitorder="little"))
        token = int(chance.choice(allowed))
        start = time.perf_counter()
        library.accept(state, token)
        times.append(taken + time.perf_counter() - start)
        if token == 2:
            state = library.start(compiled)
    return times


def other_thread_share(work: Callable[[], Any]) -> float:
    """How fast a loop in pure Python runs beside `work` in a thread, against alone: 1 when the GIL is free."""

    def count_for(done: threading.Event, counted: list[int]) -> None:
        number = 0
        while not done.is_set():
            number += 1
        counted.append(number)

    rates = []
    for busy in (lambda: time.sleep(0.5), work):
        done, counted = threading.Event(), list[int]()
        thread = threading.Thread(target=count_for, args=(done, counted))
        start = time.perf_counter()
        thread.start()
        busy()
        taken = time.perf_counter() - start
        done.set()
        thread.join()
        rates.append(counted[0] / taken)
    return rates[1] / rates[0]


def measure(library: Any, tokenizer: Tokenizer, row: torch.Tensor) -> None:
    print(f"\n| {library.name} {library.version} | compile, ms: first / again | tokens |", end="")
    print(" mask + accept, ms: mean / p99 / max | second walk | evenly drawn |\n|---|---|---|---|---|---|")
    for name, (kind, what, text) in CASES.items():
        try:
            first, compiled = timed(lambda: library.compile(kind, what))  # noqa: B023
            again, compiled = timed(lambda: library.compile(kind, what))  # noqa: B023
            tokens = tokenizer.encode(text)
            walks = [walk(library, compiled, tokens, row) for _ in range(2)]
            drawn = ms(stray(library, compiled, 300, row))
            print(f"| {name} | {first * 1e3:.1f} / {again * 1e3:.1f} | {len(tokens)} | {ms(walks[0])} |", end="")
            print(f" {ms(walks[1])} | {drawn} |")
        except Exception as error:
            print(f"| {name} | {type(error).__name__}: {str(error)[:80]} | | | | |")


def probe(library: Any, tokenizer: Tokenizer) -> dict[str, str]:
    """What a library does with each schema of PROBES."""
    found = {}
    for name, schema in PROBES.items():
        try:
            compiled = library.compile("json", schema)
            wrong = WRONG.get(name)
            if wrong is None:
                found[name] = "takes it"
                continue
            state = library.start(compiled)
            through = all(library.accept(state, token) for token in tokenizer.encode(wrong)) and library.may_end(state)
            found[name] = f"ignores it: {wrong}" if through else "keeps it"
        except Exception as error:
            found[name] = "refuses: " + (str(error).strip().splitlines() or ["?"])[-1][:70]
    return found


def ours(tokenizer: Tokenizer, size: int) -> None:
    """`engine.grammar`: what a step of 16 rows pays for those that have a grammar, and a new grammar for its trial."""
    from engine.grammar import GrammarCompiler, GrammarSpec, apply_masks

    compiler = GrammarCompiler(tokenizer.backend, tokenizer.eos_token_ids, size)
    loading, _ = timed(lambda: compiler.compile(GrammarSpec("json_object")))
    compiling, grammar = timed(lambda: compiler.compile(GrammarSpec("json_schema", json.dumps(ORDER))))
    print(
        f"\nengine.grammar: first grammar {loading * 1e3:.0f} ms, a new one {compiling * 1e3:.0f} ms, mostly its trial"
    )
    print("\n| rows with a grammar, of 16 | mask, apply and accept, ms a step |")
    print("|---|---|")
    tokens, logits = tokenizer.encode(CASES["nested, enums"][2]), torch.randn(16, size)
    for count in (1, 4, 16):
        states = [grammar.start(tokens[: 7 * i]) for i in range(count)]
        times = []
        for at in range(100):
            start = time.perf_counter()
            apply_masks(logits, range(count), states)
            for i, state in enumerate(states):
                state.accept(tokens[7 * i + at])
            times.append(time.perf_counter() - start)
        print(f"| {count} | {ms(times)} |")


def attack(library: Any, row: torch.Tensor, name: str) -> str:
    """What one hostile schema or regex costs: compile, the worst of 200 masks, and memory."""
    before, taken, worst, ending = resident_mib(), 0.0, 0.0, "taken"
    try:
        taken, compiled = timed(lambda: library.compile(*HOSTILE[name]))
        worst = max(stray(library, compiled, 200, row))
    except Exception as error:
        ending = "refused: " + (str(error).strip().splitlines() or ["?"])[0][:60]
    return f"{taken * 1e3:.0f} ms / {worst * 1e3:.1f} ms / {resident_mib() - before:.0f} MiB {ending}"


def attacked(library: str, name: str, model: str) -> str:
    """`attack` in a process of its own, which may hang or die."""
    command = [sys.executable, "-m", "bench.grammar", "--model", model, "--attack", library, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT_S} s"
    return done.stdout.strip() or f"exit status {done.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(MODEL_DIR))
    parser.add_argument("--probe", action="store_true", help="only what each library makes of schema keywords")
    parser.add_argument("--attack", nargs=2, help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()
    tokenizer = Tokenizer.load(options.model)
    row = torch.zeros(-(-tokenizer.backend.get_vocab_size() // 32), dtype=torch.int32)
    if options.attack:
        library = {"llguidance": LLGuidance, "xgrammar": XGrammar}[options.attack[0]](tokenizer)
        print(attack(library, row, options.attack[1]))
        return 0
    probes = {}
    for kind in (LLGuidance, XGrammar):
        if importlib.util.find_spec(kind.name) is None:
            continue
        before = resident_mib()
        taken, library = timed(lambda: kind(tokenizer))  # noqa: B023
        print(f"\n{kind.name}: import and tokenizer {taken:.2f} s, {resident_mib() - before:.0f} MiB")
        if not options.probe:
            measure(library, tokenizer, row)
            print(f"after that {resident_mib() - before:.0f} MiB")
            compiled = library.compile("json", ORDER)
            tokens = tokenizer.encode(CASES["nested, enums"][2])

            def masks() -> None:
                for _ in range(40):
                    walk(library, compiled, tokens, row)  # noqa: B023

            def compiles() -> None:
                for _ in range(40):
                    library.compile("json", ORDER)  # noqa: B023

            print(f"a Python thread beside it keeps {other_thread_share(masks):.0%} of its speed during masks,", end="")
            print(f" {other_thread_share(compiles):.0%} during compiling")
        probes[kind.name] = probe(library, tokenizer)
    print(f"\n| schema | {' | '.join(probes)} |\n|---|{'---|' * len(probes)}")
    for name in PROBES:
        print(f"| {name} | {' | '.join(found[name] for found in probes.values())} |")
    if not options.probe:
        ours(tokenizer, row.numel() * 32)
    print(f"\n| hostile: compile / worst mask / memory | {' | '.join(probes)} |\n|---|{'---|' * len(probes)}")
    for name in HOSTILE:
        print(f"| {name} | {' | '.join(attacked(library, name, options.model) for library in probes)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
