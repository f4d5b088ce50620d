"""The engine alone, on the command line: `python -m engine.generate --model PATH "text"` streams the answer.

The text goes through the model's chat template as a user's message; `--raw` continues it as it stands. Needs neither
Redis nor the product. What cannot work is one line on stderr and exit status 1 (2 for a wrong command line).
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

import structlog

from engine.config import EngineConfig, EngineConfigError
from engine.protocol import ChatMessage, SystemText
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python -m engine.generate", description="Stream a model's answer to a text."
    )
    options.add_argument("text", help="the user's message; - reads it from stdin")
    options.add_argument("--model", required=True, metavar="PATH", help="model folder, .gguf file or hub id")
    options.add_argument("--raw", action="store_true", help="continue the text as it stands, without the chat template")
    options.add_argument("--system", default="", metavar="TEXT", help="system message")
    options.add_argument("--max-tokens", type=int, default=None, metavar="N", help="default: to the end of the context")
    options.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0, the default, is greedy")
    options.add_argument("--top-p", type=float, default=1.0, metavar="P")
    options.add_argument("--top-k", type=int, default=0, metavar="K", help="0: no limit")
    options.add_argument("--min-p", type=float, default=0.0, metavar="P")
    options.add_argument("--seed", type=int, default=0, metavar="N")
    options.add_argument("--stop", action="append", default=[], metavar="TEXT", help="may be given several times")
    options.add_argument("--ignore-eos", action="store_true", help="go on behind the model's own end")
    options.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16: through torch")
    options.add_argument("--weights", default="auto", help="auto, int4, int8 or bf16: in the C++ decoder, on a CPU")
    options.add_argument("--device", default="auto", help="auto, cpu or cuda")
    options.add_argument("--tensor-parallel", type=int, default=1, metavar="N", help="GPUs that share the model")
    options.add_argument("--stats", action="store_true", help="tokens and speed on stderr at the end")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    text = sys.stdin.read() if options.text == "-" else options.text
    if not text.strip():
        return _fail("the text is empty; give the model something to answer", 2)
    try:
        params = SamplingParams(
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            min_p=options.min_p,
            seed=options.seed,
            stop=tuple(options.stop),
            ignore_eos=options.ignore_eos,
        )
    except ValueError as error:
        return _fail(str(error), 2)
    # Standard output is the answer's alone.
    structlog.reset_defaults()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    # torch is loaded from here on: a wrong command line is answered at once.
    from engine.chat_template import ChatTemplateError
    from engine.llm_engine import LLMEngine
    from engine.models import ModelError
    from engine.outputs import RequestRefused

    try:
        engine = LLMEngine(
            EngineConfig(
                model=options.model,
                dtype=options.dtype,
                weights=options.weights,
                device=options.device,
                tensor_parallel=options.tensor_parallel,
                max_num_seqs=1,
            )
        )
        if options.raw:
            engine.add_request("text", engine.tokenizer.encode(text, special=True), params)
        else:
            system = [SystemText(options.system, "")] if options.system else []
            prompt, regions = engine.tokenizer.render_chat(system, [ChatMessage("user", text)], "")
            engine.add_request("text", prompt, params, regions=regions)
    except (ModelError, EngineConfigError, RequestRefused, ChatTemplateError) as error:
        return _fail(str(error), 1)
    return _stream(engine, options.stats)


def _stream(engine: LLMEngine, stats: bool) -> int:
    started = time.perf_counter()
    first = None
    status = 0
    while engine.has_work():
        for output in engine.step():
            if output.new_token_ids and first is None:
                first = time.perf_counter()
            print(output.text, end="", flush=True)
            if output.error:
                status = _fail(output.error, 1)
            if output.finish_reason and stats:
                decode = time.perf_counter() - (first or started)
                speed = (output.completion_tokens - 1) / decode if decode else 0.0
                print(
                    f"\n{output.prompt_tokens} prompt tokens, {output.completion_tokens} answer tokens "
                    f"({output.finish_reason}); first after {(first or started) - started:.2f} s, then {speed:.1f}/s",
                    end="",
                    file=sys.stderr,
                )
    print()
    return status


def _fail(message: str, status: int) -> int:
    print(f"engine.generate: {' '.join(message.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print()
        sys.exit(130)
