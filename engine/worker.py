"""The process that owns an engine: `python -m engine.worker --model PATH [--redis URL] [--name NAME]`.

Promises: what cannot work at the start is said in one line, with exit status 1; SIGTERM and SIGINT let what runs finish
for a while and exit with 0; a fault exits with 1, for the supervisor to start a new process. The work itself is in
`engine.worker_loop`.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import logs, protocol, tracing
from engine.bus import RedisUnavailable, wait_for_redis
from engine.config import EngineConfig, EngineConfigError
from engine.models import identity
from engine.models.config import ModelError
from engine.models.source import located

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine
    from engine.worker_loop import Worker

MAX_ITL_MS = 100.0
"""Text that comes every 100 ms still reads as flowing; with less, first words wait longer for their prompt. Where the
decodes alone take longer, the least chunk of 16 prompt tokens takes longer still."""
ENGINE_SETTINGS = (
    "model",
    "dtype",
    "weights",
    "device",
    "kv_dtype",
    "tensor_parallel",
    "block_size",
    "num_blocks",
    "kv_memory_bytes",
    "host_kv_memory_bytes",
    "max_num_seqs",
    "threads",
    "token_budget",
    "max_model_len",
    "max_itl_ms",
    "speculation",
    "overlap",
    "graphs",
    "batch_invariant",
    "max_seqs_per_tenant",
    "max_kv_share",
    "prompt_store",
    "prompt_store_bytes",
)


class SecretError(Exception):
    """A file that should hold a secret cannot be read; one line that names it."""


class MetricsError(Exception):
    """The metrics cannot be served; one line that says why."""


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    """Options, each with an environment variable OCTAVO_WORKER_<NAME> as its default."""
    env = os.environ.get
    parser = argparse.ArgumentParser(prog="python -m engine.worker", description="Serve one model to Octavo.")

    def number(name: str, kind: type, default: Any, text: str) -> None:
        variable = f"OCTAVO_WORKER_{name.upper()}"
        value = env(variable)
        try:
            default = kind(value) if value else default
        except ValueError:
            parser.error(f"{variable}={value} is no number")
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, help=text)

    parser.add_argument("--model", default=env("OCTAVO_MODEL"), help="folder, .gguf file or hub id [OCTAVO_MODEL]")
    sha256 = env("OCTAVO_MODEL_SHA256")
    parser.add_argument(
        "--model-sha256", default=sha256, help="what python -m engine.digest says of it; others refused"
    )
    parser.add_argument("--served-as", default=env("OCTAVO_WORKER_SERVED_AS"), help="its name on the wire")
    parser.add_argument("--redis", help="Redis, or sentinel://…/master/db [REDIS_URL, or the file of REDIS_URL_FILE]")
    name = env("OCTAVO_WORKER_NAME") or socket.gethostname()
    parser.add_argument("--name", default=name, help="what the worker's id begins with")
    parser.add_argument("--dtype", default=env("OCTAVO_WORKER_DTYPE") or "auto", help="float32, …: through torch")
    weights = env("OCTAVO_WORKER_WEIGHTS") or EngineConfig.weights
    parser.add_argument("--weights", default=weights, help="auto, int4, int8 or bf16: in the C++ decoder, on a CPU")
    parser.add_argument("--device", default=env("OCTAVO_WORKER_DEVICE") or "auto")
    kv_dtype = env("OCTAVO_WORKER_KV_DTYPE") or EngineConfig.kv_dtype
    parser.add_argument("--kv-dtype", default=kv_dtype, help="of keys and values: bfloat16, int8 or fp8")
    number("tensor_parallel", int, EngineConfig.tensor_parallel, "GPUs that share the model, a process each")
    number("block_size", int, EngineConfig.block_size, "tokens in a block")
    number("num_blocks", int, None, "blocks in the pool")
    number("kv_memory_bytes", int, None, "size of the pool (on each GPU), instead of num-blocks")
    number("host_kv_memory_bytes", int, None, "host memory for blocks that had to leave a GPU's pool")
    number("max_num_seqs", int, EngineConfig.max_num_seqs, "requests that run at once")
    number("threads", int, None, "threads of a CPU's products; not given: all cores that it may use")
    number("token_budget", int, EngineConfig.token_budget, "tokens in a step")
    number("max_model_len", int, None, "tokens of prompt and answer")
    number("max_itl_ms", float, MAX_ITL_MS, "how long a step should take at most beside answers, in ms")
    number("max_seqs_per_tenant", int, None, "requests of one tenant that run at once")
    number("max_kv_share", float, EngineConfig.max_kv_share, "share of the pool for what one tenant runs, 0 to 1")
    store = env("OCTAVO_WORKER_PROMPT_STORE")
    parser.add_argument("--prompt-store", default=store, help="folder for published prompts' KV; none: not kept")
    number("prompt_store_bytes", int, EngineConfig.prompt_store_bytes, "what that folder may take")
    switches: tuple[tuple[str, bool | None, str], ...] = (
        ("speculation", False, "check guesses at the next tokens where that pays"),
        ("overlap", None, "schedule a step while the one before it is computed; neither: on a GPU"),
        ("graphs", True, "record decode steps on a GPU once and replay them"),
        ("batch_invariant", False, "answers do not depend on what else runs, to the bit; slower"),
    )
    for name, usual, text in switches:
        default = _is_on(parser, f"OCTAVO_WORKER_{name.upper()}", usual)
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=text)
    number("metrics_port", int, None, "where Prometheus finds /metrics; 0: a free port; not given: nowhere")
    metrics_host = env("OCTAVO_WORKER_METRICS_HOST") or "127.0.0.1"
    parser.add_argument("--metrics-host", default=metrics_host, help="the address that this port is at")
    by_tenant = _is_on(parser, "OCTAVO_WORKER_METRICS_BY_TENANT", False)
    text = "also the service that each tenant has received: a series for each"
    parser.add_argument("--metrics-by-tenant", action=argparse.BooleanOptionalAction, default=by_tenant, help=text)
    number("grace_s", float, 8.0, "how long what runs may go on after SIGTERM")
    number("redis_wait_s", float, 60.0, "how long to wait for Redis at the start")
    return parser.parse_args(argv)


def _is_on(parser: argparse.ArgumentParser, variable: str, usual: bool | None) -> bool | None:
    value = os.environ.get(variable, "").strip().lower()
    if not value:
        return usual
    if value not in ("0", "false", "no", "off", "1", "true", "yes", "on"):
        parser.error(f"{variable}={value} is neither on nor off: use 1 or 0")
    return value in ("1", "true", "yes", "on")


def _secret(name: str) -> str:
    """The variable, or what the file of NAME_FILE holds; empty where there is neither. A command line shows it all."""
    file = os.environ.get(f"{name}_FILE")
    try:
        return Path(file).read_text().strip() if file else os.environ.get(name, "")
    except OSError as error:
        raise SecretError(f"{name}_FILE={file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise SecretError(f"{name}_FILE={file} cannot be read: it is no text.") from None


def _metrics_token(options: argparse.Namespace) -> str:
    """What whoever reads the metrics has to know: OCTAVO_METRICS_TOKEN, or what the file of …_FILE holds; empty where
    there are none to read."""
    if options.metrics_port is None:
        return ""
    token = _secret("OCTAVO_METRICS_TOKEN")
    if not token:
        raise MetricsError("--metrics-port needs a token for who may read: set OCTAVO_METRICS_TOKEN (or …_FILE).")
    return token


def _serve_metrics(options: argparse.Namespace, token: str, worker: Worker, engine: LLMEngine) -> None:
    """Raises MetricsError where the port cannot be had."""
    from engine import metrics

    collector = metrics.WorkerCollector(engine, worker.measures, worker.details, by_tenant=options.metrics_by_tenant)
    try:
        server = metrics.serve(collector, host=options.metrics_host, port=options.metrics_port, token=token)
    except (OSError, OverflowError) as error:
        where = f"{options.metrics_host}:{options.metrics_port}"
        raise MetricsError(f"--metrics-port: {where} cannot be listened on: {error}.") from None
    worker.metrics = server.address


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    logs.configure()
    tracing.begin("engine")
    try:
        options.redis = options.redis or _secret("REDIS_URL")
        token = _metrics_token(options)
    except (SecretError, MetricsError) as error:
        _say(str(error))
        return 1
    for value, what, variable in ((options.model, "model", "OCTAVO_MODEL"), (options.redis, "Redis", "REDIS_URL")):
        if not value:
            _say(f"No {what} given: set {variable} or --{what.lower()}.")
            return 1
    try:
        config = EngineConfig(**{name: getattr(options, name) for name in ENGINE_SETTINGS})
        if options.model_sha256:
            identity.check(located(options.model), options.model_sha256)
        wait_for_redis(options.redis, options.redis_wait_s, _say)
        # Here, as it loads torch: what is said above is said at once.
        from engine.llm_engine import LLMEngine
        from engine.worker_loop import Worker

        engine = LLMEngine(config)
        # What was loaded stays: a collection that walks all of it would hold up every stream for 0.1 s.
        gc.collect()
        gc.freeze()
    except (EngineConfigError, RedisUnavailable, ModelError) as error:
        _say(str(error))
        return 1
    model = options.served_as or protocol.model_name(options.model)
    worker = Worker(engine, redis_url=options.redis, name=options.name, model=model, grace_s=options.grace_s)
    try:
        if token:
            _serve_metrics(options, token, worker, engine)
    except MetricsError as error:
        _say(str(error))
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    return worker.run()


if __name__ == "__main__":
    sys.exit(main())
