"""The engine loop of a worker: take in what has arrived, compute a step, hand out what it gave.

Owns the runs: which generations are ours. It never waits for the network (the bus does, in its own threads), nor for a
tokenizer (one thread renders and tokenizes prompts), nor for a grammar (another one compiles).

Promises: a generation that was taken ends with exactly one terminal event, unless it is dropped because it is not ours
any more; one that another worker began goes on where its log ends; a cancelled one has freed its blocks before the next
step; `stop` lets what runs finish, for a while, and leaves the rest to others; a step that fails ends everything with
an error event at once; beside one that workers seem to have died of nothing runs. No prompt or answer text is logged.
Knows no Redis.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from engine import __version__, protocol, run_ends, wire_requests
from engine.bus import Bus
from engine.continuation import Begun, CannotContinue
from engine.fairness import OUTPUT_COST, PROMPT_COST
from engine.measures import Measures
from engine.occupancy import Occupancy, Pace
from engine.outbox import Said
from engine.outputs import RequestRefused, StepError, StepOutput
from engine.parts import PartWriter
from engine.protocol import (
    AnyTerminal,
    CountRequest,
    Delta,
    PublishedPrompt,
    Request,
    Started,
    Taken,
    Watch,
    WorkerDetails,
)
from engine.run import Prompt, Run
from engine.worker_memory import WorkerMemory
from engine.worker_prompts import WorkerPrompts

if TYPE_CHECKING:
    from engine.grammar import CompiledGrammar
    from engine.llm_engine import LLMEngine

log = structlog.get_logger(__name__)

IDLE_S = 1.0
"""How long an idle loop waits at most. A signal that comes between the interpreter's last look and the wait is seen
only when the wait is over: SIGTERM went unheard for a minute that way."""
DEADLINES_EVERY_S = 0.25
WHOLE_AGAIN_S = 2.0  # where frames were lost on their way
STEPS = 32  # of whose time the mean is told, about
LAST_WORD_S = 0.5
FLUSH_S = 5.0  # to hand out the last events when the process ends
ENDS = ("stop", "length", "tool_calls")
"""Why a choice may have ended by itself."""

REASON_OF: dict[type, str] = {
    protocol.Cancelled: "abort", protocol.TimedOut: "timeout", protocol.Refused: "refused",
}  # fmt: skip
"""Why a request ended that did not end by itself, in the words of the metrics; whatever else: error."""

FAULT = "The engine failed while it worked on this. Try again."
CHANGED = "The engine that went on with this reads it another way than the one that began it. Try again."
TIMED_OUT = "The request reached its deadline before the answer was complete."
DEADLINE = protocol.TimedOut(code="deadline", message=TIMED_OUT, retryable=True)


class Stop(Exception):
    """The loop ends; the process is to exit with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Worker:
    """Also the bus's Listener: what it hears goes into the inbox, for the engine loop."""

    def __init__(self, engine: LLMEngine, *, redis_url: str, name: str, model: str, grace_s: float = 8.0) -> None:
        self.id = f"{name}-{os.getpid()}-{secrets.token_hex(3)}"
        self.model = model
        self._engine = engine
        self._grace_s = grace_s
        # A SimpleQueue may be written to by a signal handler that interrupted its reader.
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._runs: dict[str, Run] = {}
        self._said: list[Said] = []
        self._several: set[Run] = set()  # runs of several choices that this step has something of
        self._prompts: dict[str, Prompt] = {}  # of runs whose published prompt is to be pinned
        self._forgotten: set[str] = set()  # tenants that are gone; their ids are never used again
        self._healthy = True
        self._stop_by: float | None = None
        self._drained = False  # an operator wants it to take nothing new
        self._alone: Run | None = None
        self._deadlines_at = 0.0
        self._frame_at = 0.0
        self._pace = Pace()
        self._at_ms = 0
        self._started_ms = int(time.time() * 1000)
        self._step_s = 0.0
        self._occupancy = Occupancy(engine, worker=self.id, name=_generation)
        self._rested = False
        self._tokenizers = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._compilers = ThreadPoolExecutor(1, thread_name_prefix="compiler")
        self.measures = Measures()
        self.metrics = ""
        """Where /metrics of this process is, as host:port; empty: nowhere."""
        self._step_at = self._step_told = time.monotonic()
        self.bus = Bus(redis_url, self.id, model, engine.config.max_num_seqs, self, self.details, self.measures)
        self.prompts = WorkerPrompts(engine, self.bus)
        self.memory = WorkerMemory(engine, self.bus, self.id)
        self._writer = PartWriter(engine.vocabulary)
        self._tools = engine.tokenizer.call_form

    # --- the bus's listener, and signals: other threads -----------------------------------------------------------

    def taken(self, taken: Taken) -> None:
        self._inbox.put(("taken", taken))
        self._tokenizers.submit(self._prepare, self._read, taken)

    def cancelled(self, generation_id: str) -> None:
        self._inbox.put(("cancelled", generation_id))

    def expired(self, generation_id: str) -> None:
        self._inbox.put(("expired", generation_id))

    def dropped(self, generation_id: str) -> None:
        self._inbox.put(("dropped", generation_id))

    def published(self, prompt: PublishedPrompt) -> None:
        self._inbox.put(("announced", prompt))  # and not to the tokenizer at once: that may have ended before the bus

    def forget(self, tenant: str) -> None:
        self._inbox.put(("forget", tenant))

    def released(self, prompt: str, version: str) -> None:
        self._inbox.put(("released", (prompt, version)))

    def counting(self, request: CountRequest) -> None:
        self._inbox.put(("counting", request))

    def watched(self, watches: list[Watch]) -> None:
        self._inbox.put(("watched", watches))

    def drained(self, on: bool) -> None:
        self._inbox.put(("drained", on))

    def broken(self, error: Exception) -> None:
        self._inbox.put(("broken", error))

    def hung(self, for_s: float) -> None:
        """The loop cannot be told, so the process ends as it is, and the supervisor starts a new one."""
        log.error("engine.hung", worker=self.id, for_s=round(for_s), running=len(self._runs))
        time.sleep(LAST_WORD_S)  # lines of the log are written in a thread of their own
        os._exit(1)

    def stop(self) -> None:
        """End in order; a second time: at once."""
        self._inbox.put(("stop", None))

    def details(self) -> WorkerDetails:
        engine = self._engine
        return WorkerDetails(
            id=self.id,
            model=self.model,
            context=engine.context,
            block_size=engine.block_size,
            num_blocks=engine.num_blocks,
            tenant_blocks=engine.max_blocks_per_tenant,
            tools=self._tools is not None,
            pid=os.getpid(),
            host=socket.gethostname(),
            device=str(getattr(engine.runner, "device", "cpu")),
            dtype=str(getattr(engine.runner, "dtype", "")).removeprefix("torch."),
            steps=engine.steps,
            running=len(engine.scheduler.running),
            waiting=engine.scheduler.num_waiting,
            healthy=self._healthy,
            draining=self._drained or self._stop_by is not None,
            stopping=self._stop_by is not None,
            metrics=self.metrics,
            version=__version__,
            started_ms=self._started_ms,
            threads=int(getattr(engine.runner, "threads", 0)),
            step_ms=round(1000 * self._step_s, 3),
            preemptions=engine.scheduler.preemptions,
        )

    def _read(self, taken: Taken) -> None:
        request = protocol.decode_request(taken.payload)
        wire_requests.check(self._engine.tokenizer, request)
        if wire_requests.needs_grammar(request):
            self._compilers.submit(self._prepare, self._compile, taken, request)
        else:
            self._render(taken, request)

    def _compile(self, taken: Taken, request: Request) -> None:
        grammar = wire_requests.compiled(self._engine, request)
        self._tokenizers.submit(self._prepare, self._render, taken, request, grammar)

    def _render(self, taken: Taken, request: Request, grammar: CompiledGrammar | None = None) -> None:
        """Apply the chat template, tokenize."""
        token_ids, regions = wire_requests.rendered(self._engine.tokenizer, request)
        stored = None
        if not request.tools:  # which may share a little less of the published part than what was kept of it
            stored = self.prompts.stored(request.tenant, request.prompt_version, token_ids, regions)
        prompt = Prompt(taken, token_ids, regions, stored, grammar)
        self._inbox.put(("prompt", (request, prompt)))

    def _render_published(self, prompt: PublishedPrompt) -> None:
        rendered = self.prompts.render_published(prompt)
        if rendered is not None:
            self._inbox.put(("published", rendered))

    def _count(self, request: CountRequest) -> None:
        self.bus.answer(request.id, self.prompts.count(request))

    def _prepare(self, work: Callable[..., None], taken: Taken, *rest: Any) -> None:
        """Do a part of what comes before a request's first step; if it fails, the request is refused."""
        from engine.chat_template import ChatTemplateError

        refusal: AnyTerminal
        try:
            work(taken, *rest)
            return
        except (msgspec.DecodeError, RecursionError) as error:
            refusal = protocol.Refused(code="invalid_request", message=f"The engine cannot read this request: {error}")
        except ChatTemplateError as error:
            refusal = protocol.Refused(code="invalid_messages", param="messages", message=str(error))
        except RequestRefused as refused:
            refusal = protocol.Refused(code=refused.code, param=refused.param, message=refused.message)
        except Exception as error:
            log.error("request.render_failed", generation=taken.id, error=type(error).__name__)
            refusal = protocol.Failed(code="engine_error", message=FAULT, retryable=True)
        request = None
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            request = protocol.decode_request(taken.payload)
        self._inbox.put(("refused", (taken, refusal, request)))

    # --- the engine loop ------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until a signal or a fault; the exit status."""
        self.bus.start()
        log.info("worker.ready", worker=self.id, model=self.model, blocks=self._engine.num_blocks)
        try:
            while True:
                self._hear()
                self._check_deadlines()
                if self._engine.has_work():
                    self._step()
                else:
                    self._rest()
                self._speak()
        except Stop as stop:
            self._speak()
            self.bus.stop(FLUSH_S)
            log.info("worker.stopped", worker=self.id, status=stop.status)
            return stop.status
        finally:
            self._tokenizers.shutdown(wait=False, cancel_futures=True)
            self._compilers.shutdown(wait=False, cancel_futures=True)

    def _hear(self) -> None:
        """Take in what has arrived; wait for something when there is nothing else to do."""
        wait_s = self._idle_wait()
        while True:
            try:
                kind, value = self._inbox.get(timeout=wait_s) if wait_s > 0 else self._inbox.get_nowait()
            except queue.Empty:
                return
            wait_s = 0.0
            self._handle(kind, value)

    def _idle_wait(self) -> float:
        if self._engine.has_work():
            return 0.0
        if self._runs:  # their prompts are being rendered, and their deadlines run
            return DEADLINES_EVERY_S
        return IDLE_S if self._rested and self._stop_by is None else 0.0

    def _handle(self, kind: str, value: Any) -> None:
        if kind == "taken":
            self._runs[value.id] = Run(value)
            if value.alone:
                self._run_alone(self._runs[value.id])
        elif kind == "prompt":
            self._start(*value)
        elif kind == "refused":
            taken, event, request = value
            if (run := self._current(taken)) is not None:
                run.request = request
                self._end(run, event)
        elif kind == "cancelled":
            self._abort(value, protocol.Cancelled())
        elif kind == "expired":
            self._abort(value, DEADLINE)
        elif kind == "dropped":
            run = self._runs.get(value)
            if run is not None:
                self._forget(run)
                self._engine.abort(run.engine_id)
        elif kind == "announced":
            self._tokenizers.submit(self._render_published, value)
        elif kind == "published":
            if self._stop_by is None and value[0].tenant not in self._forgotten:
                self.prompts.warm(*value)
        elif kind == "released":
            self.prompts.release(*value)
        elif kind == "counting":
            self._tokenizers.submit(self._count, value)
        elif kind == "watched":
            self.memory.watch(value)
        elif kind == "forget":
            self._forget_tenant(value)
        elif kind == "drained":
            self._drained = value
            self.bus.beat()
            log.info("worker.draining" if value else "worker.taking", worker=self.id, running=len(self._runs))
        elif kind == "broken":
            self._healthy = False
            raise Stop(1)
        elif kind == "stop":
            if self._stop_by is not None:
                self._stop_by = 0.0
            else:
                log.info("worker.stopping", worker=self.id, running=len(self._runs))
                self._stop_by = time.monotonic() + self._grace_s
                self.bus.stop_taking()

    def _current(self, taken: Taken) -> Run | None:
        """The run that was taken so, unless it has ended or been dropped since."""
        run = self._runs.get(taken.id)
        return run if run is not None and run.attempt == taken.attempt else None

    def _start(self, request: Request, prompt: Prompt) -> None:
        run = self._current(prompt.taken)
        if run is None:
            return
        if request.deadline_ms:
            run.deadline = run.heard_at + (request.deadline_ms - prompt.taken.now_ms) / 1000
        run.request = request
        if run.begun.ended(request.params.n):  # only its end is missing
            self._end(run, protocol.Finished(finish_reason=run.reason))
            return
        if run.begun.started is None:
            run.shared = wire_requests.shared_tokens(request, prompt.regions)
        if request.tenant in self._forgotten:
            self._end(run, protocol.Cancelled())
            return
        if prompt.stored is not None:
            self.prompts.restore(
                request.prompt_name, request.tenant, request.prompt_version, prompt.token_ids, prompt.regions,
                prompt.stored,
            )  # fmt: skip
        try:
            self._engine.add_request(
                run.engine_id,
                prompt.token_ids,
                request.params,
                tenant=request.tenant,
                regions=prompt.regions,
                weight=request.weight,
                kv_share=request.kv_share,
                max_prompt_tokens=request.max_prompt_tokens or None,
                grammar=prompt.grammar,
                calls=wire_requests.reading(self._tools, request),
                param=wire_requests.prompt_param(request),
                continues=request.continues,
                conversation=request.conversation,
                begun=run.begun,
            )
        except CannotContinue as error:
            log.warning("generation.cannot_continue", generation=run.id, reason=str(error))
            self._end(run, protocol.Interrupted(code="engine_changed", message=CHANGED, retryable=True))
            return
        except RequestRefused as refused:
            self._end(run, protocol.Refused(code=refused.code, param=refused.param, message=refused.message))
            return
        run.added_at = time.monotonic()
        run_ends.begun(run)
        run.left = request.params.n - sum(c.finish_reason is not None for c in run.begun.choices.values())
        run.several = request.params.n > 1
        run.begun = Begun()
        if not request.tools and self.prompts.wants(request):
            self._prompts[run.id] = Prompt(prompt.taken, prompt.token_ids, prompt.regions)

    def _abort(self, generation_id: str, event: AnyTerminal) -> None:
        """End a run with this event. Its blocks are free on return; text that was held back goes out before it."""
        run = self._runs.get(generation_id)
        if run is None or run.ending is not None:
            return
        run.ending = event
        if not self._engine.abort(run.engine_id):
            self._end(run, event)

    def _forget_tenant(self, tenant: str) -> None:
        """A tenant is being deleted: end what it runs, and keep nothing of it, now or later. Heard more than once."""
        self._forgotten.add(tenant)
        for run in list(self._runs.values()):
            if run.request is not None and run.request.tenant == tenant:
                self._abort(run.id, protocol.Cancelled())
        try:
            dropped = self._engine.forget_tenant(tenant)
        except OSError as error:  # who waits for us asks again
            log.error("tenant.not_forgotten", tenant=tenant, reason=error.strerror or type(error).__name__)
            return
        self.prompts.forget_tenant(tenant)
        self._prompts = {key: prompt for key, prompt in self._prompts.items() if key in self._runs}
        self._rested = False
        self._show(anew=True)
        self.bus.forgot(tenant)
        log.info("tenant.forgotten", tenant=tenant, blocks=dropped)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if now < self._deadlines_at:
            return
        self._deadlines_at = now + DEADLINES_EVERY_S
        self.prompts.look()
        for run in list(self._runs.values()):
            if run.deadline is not None and run.deadline <= now:
                self._abort(run.id, DEADLINE)
        if self._stop_by is not None and now >= self._stop_by:
            self._leave_all()

    def _leave_all(self) -> None:
        """End before our answers do: what they have said goes out, and others go on with them."""
        left = [run for run in self._runs.values() if run.ending is None]
        for run in left:
            self._forget(run)  # before the abort, which gives out text that is held back
            self._engine.abort(run.engine_id)
            log.info("generation.left", generation=run.id, attempt=run.attempt)
        self.bus.leave([run.id for run in left])

    def _run_alone(self, run: Run | None) -> None:
        """Let nothing else run until it has said something; None: it has, or is gone."""
        self._alone = run
        self._engine.run_alone(None if run is None else run.engine_id)

    def _step(self) -> None:
        self._rested = False
        self._step_at = time.monotonic()
        computed = self._engine.totals["computed_tokens"]
        try:
            outputs = self._engine.step()
        except Exception as error:  # StepError, or a fault in the engine's own bookkeeping
            self._fail_all(error)
        self._step_told = time.monotonic()
        for output in outputs:
            self._report(output)
        for run in self._several:
            self._settle(run)
        self._several.clear()
        self.measures.stepped(self._step_at, self._step_told, self._engine.totals["computed_tokens"] - computed)
        self.prompts.acknowledge()
        self._show()
        self.memory.show(self._runs)
        took = self._step_told - self._step_at
        self._step_s += (took - self._step_s) / min(max(1, self._engine.steps), STEPS)

    def _fail_all(self, error: Exception) -> None:
        """A step failed: say so to everyone whom it was for, now, leave the others to the next worker, and let the
        supervisor start a new process. Of a fault in the engine's own bookkeeping nobody knows whom it was for."""
        log.error("engine.step_failed", worker=self.id, error=str(error), exc_info=error)
        self._healthy = False
        self.bus.stop_taking()
        hit = set(error.request_ids) if isinstance(error, StepError) else {r.engine_id for r in self._runs.values()}
        for run in list(self._runs.values()):
            if run.engine_id in hit:
                self._end(run, protocol.Failed(code="engine_fault", message=FAULT, retryable=True))
        self._leave_all()
        raise Stop(1) from error

    def _report(self, output: StepOutput) -> None:
        """Turn one output of the engine into events; one of several choices waits for the step's others."""
        generation_id, _, attempt = output.request_id.rpartition("/")
        run = self._runs.get(generation_id)
        if run is None or run.attempt != int(attempt):
            return
        if output.index == 0:  # the others find its prompt in the cache
            run.prompt, run.cached = output.prompt_tokens, output.cached_tokens
        run.outputs[output.index] = output.completion_tokens
        if output.started is not None:
            prompt, cached = output.started
            run.scheduled_at = self._step_at
            started = Started(
                seq=run.seq, prompt_tokens=prompt, cached_tokens=cached, shared_tokens=min(cached, run.shared)
            )
            self._say(run, started, PROMPT_COST * (prompt - cached))
        if output.new_token_ids or output.text or output.tool_calls:
            now = self._step_told
            if run is self._alone:
                self._run_alone(None)
            if run.id in self._prompts:
                self._pin(run)
            if run.first_at is None:
                run.first_at = now
                self.measures.first_token_s.observe(run.waited_s + now - run.taken_at)
            elif output.new_token_ids and run.last_at != now:  # else text that was held back, or another choice's turn
                self.measures.said(run.last_at)
            run.last_at = now
            run.parts.append(self._writer.part(output))
        elif output.prompt_logprobs or output.finish_reason in ENDS:
            run.parts.append(self._writer.part(output))
        if output.finish_reason is not None:
            self._note_end(run, output)
        if run.several:
            self._several.add(run)
        else:
            self._settle(run)

    def _note_end(self, run: Run, output: StepOutput) -> None:
        """One choice has ended."""
        run.left -= 1
        if output.index == 0:
            run.reason = output.finish_reason
        if output.finish_reason not in ENDS and run.ending is None:
            run_ends.failed(run, output.error or "")
            run.ending = protocol.Failed(code="engine_error", message=FAULT, retryable=True)
            self._engine.abort(run.engine_id)  # the other choices: nobody can be told of them any more

    def _settle(self, run: Run) -> None:
        """A step's parts of one run become one event; behind the last choice's end comes the run's own."""
        if run.parts:
            tokens = len(run.parts[0].token_ids)
            if len(run.parts) > 1:
                tokens += sum(len(part.token_ids) for part in run.parts[1:])
            self._say(run, Delta(seq=run.seq, parts=run.parts), OUTPUT_COST * tokens)
            run.parts = []
        if run.left == 0:
            self._end(run, run.ending or protocol.Finished(finish_reason=run.reason))

    def _pin(self, run: Run) -> None:
        """The prompt is computed: keep the tenant's published part of it in the cache."""
        prompt = self._prompts.pop(run.id, None)
        if prompt is not None and run.request is not None:
            self.prompts.pin(run.request, prompt.token_ids, prompt.regions)

    def _say(self, run: Run, event: Started | Delta, cost: float) -> None:
        self._said.append((run.id, run.attempt, event, cost))
        run.seq += 1

    def _end(self, run: Run, event: AnyTerminal) -> None:
        """The one way in which a run ends: its terminal event, with usage and timing."""
        usage, timing = run.usage, run.timing
        event = msgspec.structs.replace(event, seq=run.seq, usage=usage, timing=timing)
        if isinstance(event, protocol.Finished):
            parts = timing.queue_s, timing.prefill_s, timing.decode_s
            self.measures.ended(event.finish_reason or "stop", parts, usage.prompt_tokens, usage.completion_tokens)
        else:
            self.measures.ended(REASON_OF.get(type(event), "error"))
        self._said.append((run.id, run.attempt, event, 0.0))
        run_ends.ended(run, event)
        self._forget(run)

    def _forget(self, run: Run) -> None:
        self._runs.pop(run.id, None)
        self._prompts.pop(run.id, None)
        if run is self._alone:
            self._run_alone(None)

    def _speak(self) -> None:
        if self._said:
            self.bus.tell(self._said)
            self._said = []

    def _rest(self) -> None:
        """Nothing to compute: audit once, show the final block table, end if that is wanted or no step could run."""
        if not self._rested and not self._runs:
            self._rested = True
            try:
                self._engine.check_integrity()
            except AssertionError as error:
                self._fail_all(error)
            self._show(final=True)
        elif self.bus.lacks_whole_frame:
            self._show()
        self.memory.show(self._runs)
        if self._stop_by is not None and not self._runs:
            raise Stop(0)
        try:
            self._engine.runner.check()
        except Exception as error:
            self._fail_all(error)

    def _show(self, *, final: bool = False, anew: bool = False) -> None:
        """Publish what has changed of the block table; the last state of all is never left out. `anew`: a tenant is
        gone, and nothing that was published before may be kept.
        """
        now = time.monotonic()
        if now < self._frame_at and not (final or anew):
            return
        lost = self.bus.lacks_whole_frame
        self._at_ms = max(self._at_ms, int(time.time() * 1000))  # clocks are set back now and then
        frame = self._occupancy.frame(self._at_ms, whole=lost, anew=anew)
        if frame is not None:
            self.bus.publish(frame)
        wait_s = self._pace.wait_s(time.monotonic() - now)
        self._frame_at = now + max(WHOLE_AGAIN_S if lost else 0.0, wait_s)


def _generation(request_id: str) -> str:
    """Which generation a request of the engine is an attempt at."""
    return request_id.rpartition("/")[0]
