"""The engine: requests in, steps, tokens and text out.

Owns the live requests and puts the parts together: scheduler, runner, detokenizer. Promises:

- what can never run is refused by `add_request`, with the reason; what is accepted ends with exactly one output that
  has a finish_reason, unless a step failed: then StepError names what ended with it;
- `abort` works in any state, any number of times, for any id; the blocks are free on return;
- a fault in one request ends that request; a fault in the step ends everything that runs, and nothing that waits;
- after every call, `check_integrity` holds;
- with `overlap` a step is launched before the result of the one before it is in, as if every sequence got its token
  there and went on; the answers are the same. What a sequence has computed behind its end is dropped. Its blocks are
  free at once nevertheless: the runner's work is done in the order of the calls, so whoever gets them writes later.

Everything happens in the calls of one thread: there is no lock and no task. It knows neither the network nor what a
tenant is beyond a name.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from engine import snapshot
from engine.block_pool import BlockPool
from engine.chat_memory import ChatMemory
from engine.config import EngineConfig
from engine.continuation import Begun, CannotContinue, Replayed, replay
from engine.detokenizer import Detokenizer, ReadDetokenizer, ShowingVocabulary, TokenizerVocabulary
from engine.grammar import CompiledGrammar, GrammarCompiler
from engine.grammar_spec import GrammarError, GrammarSpec
from engine.outputs import Completion, RequestRefused, StepError, StepOutput
from engine.pacer import StepPacer
from engine.prefix_cache import PrefixCache
from engine.protocol import ChatMessage
from engine.published_prompts import PublishedPrompts
from engine.regions import Region
from engine.runner import ModelRunner, Pending
from engine.sampler import Drawn
from engine.sampling_params import SamplingParams
from engine.scheduler import Batch, Scheduler
from engine.sequence import GONE, Sequence, SequenceState
from engine.speculation import Speculation
from engine.tool_calls import CallParser, CallReading
from engine.tool_grammar import ToolGrammar

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer


LEAST_PREFILL = 16
"""Prompt tokens that a step carries whatever it takes, so that prompts do get computed."""


@dataclass(slots=True)
class _Flight:
    """A step that was launched and whose result is not in. `copied`: blocks that were written to for it."""

    batch: Batch
    decodes: int
    pending: Pending
    began: float
    copied: list[int]


class LLMEngine:
    """Loads the model and tokenizer of `config`, unless a runner (and perhaps a tokenizer) is given.

    `clock` gives seconds. Raises ModelError or EngineConfigError, one line each, when it cannot start.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        runner: ModelRunner | None = None,
        tokenizer: Tokenizer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self._clock = clock
        if runner is None:
            # Loaded where there is a model to load: a runner that is given needs nothing that reads files.
            from engine.runners import load_runner
            from engine.tokenizer import Tokenizer

            runner = load_runner(config)
            tokenizer = tokenizer or Tokenizer.load(config.model)
        self.runner = runner
        self._tokenizer = tokenizer
        self.vocabulary = None if tokenizer is None else TokenizerVocabulary(tokenizer.backend)
        self._eos = runner.eos_token_ids | frozenset(tokenizer.eos_token_ids if tokenizer is not None else ())
        self._grammars = None if tokenizer is None else GrammarCompiler(tokenizer.backend, self._eos, runner.vocab_size)
        self.block_size = config.block_size
        self.num_blocks = runner.num_blocks
        self.max_model_len = runner.max_model_len
        self.max_blocks_per_tenant = max(1, int(self.num_blocks * config.max_kv_share))
        self.pool = BlockPool(self.num_blocks)
        self.cache = PrefixCache(
            self.pool,
            config.block_size,
            revision=runner.revision,
            enabled=config.prefix_caching,
            hash_bits=config.hash_bits,
            host_blocks=runner.num_host_blocks,
        )
        self.scheduler = Scheduler(
            self.pool,
            self.cache,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            token_budget=config.token_budget,
            patience=config.patience,
            spare_tokens=config.spare_tokens,
            max_seqs_per_tenant=config.max_seqs_per_tenant,
            max_blocks_per_tenant=self.max_blocks_per_tenant,
            window=runner.window,
        )
        bound_s = (config.max_itl_ms or 1e6) / 1e3
        self.pacer = StepPacer(bound_s, config.token_budget, min(LEAST_PREFILL, config.token_budget))
        self._prefill_cap = self.pacer.cap if config.max_itl_ms is not None else None
        self.speculation = Speculation(self.scheduler, self.pacer) if config.speculation else None
        wanted = runner.asynchronous if config.overlap is None else config.overlap
        self.overlap = wanted and self.speculation is None
        self._flight: _Flight | None = None
        self._copied: list[int] = []  # blocks that were written to since the last launch
        self._told_at = 0.0
        # Tokens that a sequence can compute. Behind a window blocks are used again, so the pool sets no bound.
        self._max_slots = self.max_blocks_per_tenant * self.block_size
        if self.scheduler.windows is not None:
            self._max_slots = max(self._max_slots, self.max_model_len)
        self.epoch_s = time.time() - clock()
        """What to add to the pool's time to get seconds of the Unix epoch."""
        self.chats = ChatMemory(
            self.pool,
            self.cache,
            self.scheduler,
            block_bytes=int(getattr(runner, "block_bytes", 0)),
            epoch_s=self.epoch_s,
        )
        self._live: dict[str, list[Sequence]] = {}  # the choices that have not ended
        self._ended: list[StepOutput] = []  # ended between two steps; the next one tells
        self._arrivals = count()
        self.prompts = PublishedPrompts(
            self.cache,
            self.scheduler,
            runner,
            config,
            check=lambda prompt: self._refuse_unless_runnable(prompt, ()),
            copy_blocks=self._copy_blocks,
            arrivals=self._arrivals,
            tick=self._tick,
        )
        self.steps = 0
        self.totals = Counter[str]()

    # --- requests -------------------------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise RuntimeError("this engine was made without a tokenizer")
        return self._tokenizer

    @property
    def context(self) -> int:
        """The longest prompt and answer together, in tokens: the model's, or what the pool gives a tenant if less."""
        return min(self.max_model_len, self._max_slots)

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: SequenceOf[int],
        params: SamplingParams,
        *,
        tenant: str = "",
        regions: SequenceOf[Region] = (),
        weight: float = 1.0,
        kv_share: float = 1.0,
        max_prompt_tokens: int | None = None,
        grammar: CompiledGrammar | None = None,
        calls: CallReading | None = None,
        param: str = "messages",
        continues: bool = False,
        conversation: str = "",
        begun: Begun | None = None,
    ) -> None:
        """Queue a request. Raises RequestRefused when it could never run or its id is in use.

        Ids can be used again once their request has ended. `regions` give the salts under which blocks are shared;
        without any, they are shared within the tenant. `weight` is the tenant's share relative to others, `kv_share`
        the part of the pool that what it runs may use; both are the tenant's from now on. `max_prompt_tokens`: refuse
        a longer prompt. `grammar`: instead of what `params` name; `calls`: how the answers call functions. `param`: the
        caller's word for where the prompt came from, for refusals. `continues`: the prompt ends with the beginning of
        the answer. `conversation`: the tenant's chat that this is a turn of, under which `chats` knows it. `begun`:
        what another engine has told of it already; this one goes on behind it. Raises CannotContinue where it cannot.
        """
        tokens = len(prompt_token_ids)
        if request_id in self._live:
            raise RequestRefused("duplicate_request_id", f"A request with the id {request_id} is live.", "request_id")
        blocks = self._blocks_of_share(kv_share)
        # Behind a window blocks are used again, so a share sets no bound either.
        slots = (
            self._max_slots if self.scheduler.windows is not None else min(self._max_slots, blocks * self.block_size)
        )
        self._refuse_unless_runnable(prompt_token_ids, regions, slots, param)
        if max_prompt_tokens is not None and tokens > max_prompt_tokens:
            raise RequestRefused(
                "context_length_exceeded",
                f"The prompt has {tokens} tokens, but at most {max_prompt_tokens} are allowed; shorten it.",
                param,
            )
        if outside := [token for token in params.logit_bias if token >= self.runner.vocab_size]:
            message = f"logit_bias names token {outside[0]}, not one of 0 .. {self.runner.vocab_size - 1}."
            raise RequestRefused("invalid_token", message, "logit_bias")
        if grammar is None and params.grammar is not None:
            grammar = self.compile_grammar(params.grammar, tenant)
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)
        # The last token of an answer needs no slot: nothing is computed from it.
        longest = min(self.max_model_len, slots + 1)
        begun = begun or Begun()
        left = [index for index in range(params.n) if begun.choice(index).finish_reason is None]
        parsers = {index: None if calls is None else calls.parser(index) for index in left}
        choices = [
            Sequence(
                request_id,
                prompt_token_ids,
                params,
                index=index,
                tenant=tenant,
                regions=regions,
                arrival=next(self._arrivals),
                max_total=longest if params.max_tokens is None else min(longest, tokens + params.max_tokens),
                stop_ids=stop_ids,
                detokenizer=self._detokenizer(params, calls, parser, continues),
                grammar=None if grammar is None else grammar.start(),
                calls=parser,
                conversation=conversation,
            )
            for index, parser in parsers.items()
        ]
        told = self._go_on(choices, begun)
        # The first choice computes the prompt; the others wait for it, and copy the end of it.
        for sequence in choices:
            self.scheduler.add(sequence, weight, blocks)
        self._live[request_id] = choices
        for sequence, replayed in told:
            if replayed.reason is not None:
                output = self._finish(sequence, replayed.reason, text=replayed.text, flush=replayed.flush)
            else:
                output = self._output(sequence, text=replayed.text)
            output.tool_calls = replayed.calls + output.tool_calls
            self._ended.append(output)

    def _go_on(self, choices: list[Sequence], begun: Begun) -> list[tuple[Sequence, Replayed]]:
        """Bring new sequences to where their log ends; those of which there is more to tell, and what."""
        untold = []
        for sequence in choices:
            if begun.started is not None:
                if begun.started.prompt_tokens != sequence.prompt_len:
                    told = begun.started.prompt_tokens
                    raise CannotContinue(f"its prompt had {told} tokens and has {sequence.prompt_len} here")
                sequence.started = True
                sequence.num_cached = begun.started.cached_tokens
                sequence.num_charged = sequence.prompt_len
                sequence.num_scored = 0 if sequence.index else begun.prompt_logprobs
            before = begun.choice(sequence.index)
            if before.token_ids:
                try:
                    replayed = replay(sequence, before, self._hear)
                except GrammarError as error:
                    raise CannotContinue(f"its form: {error}") from None
                if replayed.text or replayed.calls or replayed.reason is not None:
                    untold.append((sequence, replayed))
        return untold

    def _detokenizer(
        self, params: SamplingParams, calls: CallReading | None, parser: CallParser | None, continues: bool
    ) -> Detokenizer | None:
        if self.vocabulary is None:
            return None
        if calls is None or parser is None:
            return Detokenizer(self.vocabulary, params.stop, params.min_tokens, continues=continues)
        marks = {mark: self.tokenizer.control_id(mark) for mark in calls.form.marks}
        shown = ShowingVocabulary(self.vocabulary, {token: mark for mark, token in marks.items() if token is not None})
        return ReadDetokenizer(shown, params.stop, params.min_tokens, parser)

    def compile_grammar(
        self, spec: GrammarSpec | ToolGrammar, tenant: str = "", param: str = "response_format"
    ) -> CompiledGrammar:
        """May be called in any thread, as a new grammar takes a while; `add_request` then finds it compiled.

        Raises RequestRefused, which names `param`, when it cannot be enforced.
        """
        try:
            if self._grammars is None:
                raise GrammarError("This engine has no tokenizer, so it cannot hold an answer to a grammar.")
            return self._grammars.compile(spec, tenant)
        except GrammarError as error:
            raise RequestRefused("invalid_grammar", str(error), param) from None

    def abort(self, request_id: str) -> bool:
        """End a request now. True if it was live: then the last output of every choice comes with the next step."""
        choices = self._live.get(request_id)
        if choices is None:
            return False
        self.totals["aborted"] += 1
        self._ended += [self._finish(sequence, "abort") for sequence in list(choices)]
        return True

    def forget_tenant(self, tenant: str) -> int:
        """End all that a tenant runs, and drop its blocks from the pool, the host's memory and the disk.

        Returns how many blocks were dropped. Nothing of the tenant can be found afterwards: what it shares with others
        is public, and theirs from now on. Raises OSError when a file of it cannot be deleted.
        """
        for request_id in [name for name, choices in self._live.items() if choices[0].tenant == tenant]:
            self.abort(request_id)
        self.prompts.forget(tenant)
        self.chats.forget_tenant(tenant)
        if self._grammars is not None:
            self._grammars.forget(tenant)
        return self.cache.forget_tenant(tenant, self.scheduler.running)

    def run_alone(self, request_id: str | None) -> None:
        """Run nothing but this request, whether it is here already or comes; None: all that is there again."""
        self.scheduler.only = request_id

    def has_work(self) -> bool:
        """Whether `step` has anything to do or to tell."""
        only = self.scheduler.only
        return bool(self._ended) or (self.scheduler.has_work() if only is None else only in self._live)

    # --- steps ----------------------------------------------------------------------------------------------------

    def step(self) -> list[StepOutput]:
        """Run one step; one output for every choice that something happened to.

        Raises StepError when the step failed as a whole; the engine can go on with what waits.
        """
        self._tick()
        start = self.pool.now
        flight, following = self._flight, None
        self._flight = None
        try:
            if flight is None or all(sequence.finished for sequence in flight.batch):
                flight = self._launch(start)
            # The rule: what is drawn from now must not depend on a token that is being drawn.
            if flight is not None and self.overlap and all(sequence.plain for sequence in flight.batch):
                following = self._launch(start, flight.batch)
            drawn = flight.pending.result() if flight is not None else {}
        except Exception as error:
            # What was to be copied may be findable already, where it was shared or preempted meanwhile.
            copied = [copy for _, copy in self.cache.copies] + self._copied
            copied += [block for launched in (flight, following) if launched is not None for block in launched.copied]
            self.cache.distrust(copied, self.scheduler.running)
            self.cache.copies.clear()
            self._copied = []
            raise StepError(self._release_running(), error) from error
        self._flight = following
        outputs = [] if flight is None else self._take(flight, drawn)
        ended, self._ended = self._ended, []
        return ended + outputs

    def _launch(self, start: float, behind: Batch | None = None) -> _Flight | None:
        """Schedule a step, behind the one in flight if there is one, and give it to the runner."""
        batch = self.scheduler.schedule(self._prefill_cap, behind)
        if self.speculation is not None:
            self.speculation.draft(batch)
        self._copy_blocks()
        if not batch:
            return None
        decodes = self.scheduler.num_decodes
        pending = self.runner.launch(batch, behind or {})
        copied, self._copied = self._copied, []
        return _Flight(batch, decodes, pending, start, copied)

    def _take(self, flight: _Flight, drawn: dict[Sequence, Drawn]) -> list[StepOutput]:
        """Take in what a step gave."""
        self.steps += 1
        batch = flight.batch
        tokens = sum(batch.values())
        self.totals["computed_tokens"] += tokens
        decodes = min(flight.decodes, tokens)  # some may have been preempted since, for a prompt
        now = self._clock()
        self.pacer.observe(tokens - decodes, decodes, now - max(flight.began, self._told_at))
        self._told_at = now
        payers = [
            s.tenant
            for s, draw in drawn.items()
            if s.state is not SequenceState.FINISHED and not draw.bad and s.prompt_name is None
        ]
        self.totals["output_tokens"] += self.scheduler.charge_output(payers)
        outputs = []
        for sequence, computed in batch.items():
            draw = drawn.get(sequence)
            runs = sequence.state is SequenceState.RUNNING
            # Aborted while it was computed, or ended by the step before; or preempted for the step behind this one, and
            # then it has lost what was computed, and keeps what was drawn.
            if not runs and (sequence.finished or draw is None or sequence.prompt_name is not None):
                continue
            if sequence.prompt_name is not None:
                self.prompts.advance(sequence, computed, draw)
            elif draw is None:
                self.scheduler.computed(sequence, computed)
                if not sequence.started:
                    outputs.append(self._output(sequence))
            elif draw.bad and sequence.grammar is not None and sequence.grammar.failure is not None:
                outputs.append(self._finish(sequence, "error", error=f"the grammar: {sequence.grammar.failure}"))
            elif draw.bad and draw.by_settings:
                outputs.append(self._finish(sequence, "error", error="its settings leave no token to say"))
            elif draw.bad:
                self.cache.forget(sequence, self.scheduler.running)
                outputs.append(self._finish(sequence, "error", error="the model's output was not a number"))
            else:
                if sequence.draft:  # its tokens count as computed as they are accepted
                    if self.speculation is not None:
                        self.speculation.judge(sequence, draw)
                    computed = min(computed, sequence.num_tokens - sequence.num_computed)
                    sequence.draft = []
                if runs:
                    self.scheduler.computed(sequence, computed)
                outputs.append(self._advance(sequence, draw))
        return outputs

    def _tick(self) -> None:
        self.pool.now = self._clock()

    def _copy_blocks(self) -> None:
        if self.cache.copies:
            self.runner.copy_blocks(self.cache.copies)
            self._copied += [copy for _, copy in self.cache.copies]
            self.cache.copies.clear()

    def generate(
        self, prompts: Iterable[str | list[int] | list[ChatMessage]], params: SamplingParams | None = None
    ) -> list[Completion]:
        """Answer all prompts, in their order, each `params.n` times.

        A text is completed as it stands; messages go through the chat template. For use without a server: the engine
        must have no other work.
        """
        from engine.offline import generate

        return generate(self, prompts, params or SamplingParams())

    def _blocks_of_share(self, share: float) -> int:
        if not 0.0 < share <= 1.0:
            raise RequestRefused("invalid_share", f"kv_share must be above 0 and at most 1, not {share}.", "kv_share")
        return min(self.max_blocks_per_tenant, max(1, int(self.num_blocks * share)))

    def _refuse_unless_runnable(
        self,
        prompt: SequenceOf[int],
        regions: SequenceOf[Region],
        slots: int | None = None,
        param: str = "messages",
    ) -> None:
        """`slots`: how many of its tokens may have a slot; None: as many as anyone's."""
        tokens = len(prompt)
        if not tokens:
            raise RequestRefused("empty_prompt", "The prompt has no tokens; send at least one.", param)
        # An answer has at least one token, which needs a position but no slot.
        longest = min(self.max_model_len - 1, self._max_slots if slots is None else slots)
        if tokens > longest:
            raise RequestRefused(
                "context_length_exceeded",
                f"The prompt has {tokens} tokens, but at most {longest} fit here; shorten it.",
                param,
            )
        if set(map(type, prompt)) != {int} or not 0 <= min(prompt) <= max(prompt) < self.runner.vocab_size:
            last = self.runner.vocab_size - 1
            raise RequestRefused("invalid_token", f"A token id of the prompt is not within 0 .. {last}.", param)
        ends = [region.end for region in regions]
        if ends != sorted(ends) or (ends and (ends[0] < 0 or ends[-1] < tokens)):
            raise RequestRefused("invalid_regions", f"The salt regions end at {ends}, not in order or too early.")

    def _advance(self, sequence: Sequence, drawn: Drawn) -> StepOutput:
        """Append what was drawn, token by token; end the sequence at the one that decides it, without those behind it.

        Whatever goes wrong here ends only this one.
        """
        try:
            text = ""
            for said, token in enumerate(drawn.tokens, 1):
                if said > 1:  # the one before was an accepted draft token: its K and V are there
                    self.scheduler.computed(sequence, 1)
                    self.totals["output_tokens"] += self.scheduler.charge_output([sequence.tenant])
                more, reason, flush = self._hear(sequence, token)
                text += more
                if reason is not None:
                    return self._finish(sequence, reason, drawn, text, said=said, flush=flush)
            return self._output(sequence, drawn, text)
        except Exception as error:
            return self._finish(sequence, "error", error=f"{type(error).__name__}: {error}", flush=False)

    def _hear(self, sequence: Sequence, token: int) -> tuple[str, str | None, bool]:
        """Append a token of the answer, and tell it to all that follow it: the text to show now, why the answer ends
        here, and whether text that is still held back belongs to it. Raises GrammarError."""
        text, reason, flush = "", None, True
        sequence.token_ids.append(token)
        if token in sequence.stop_ids:
            reason = "stop"
        elif sequence.detokenizer is not None:
            text, stopped = sequence.detokenizer.push(token)
            if stopped:
                reason, flush = "stop", False
        if reason is None and sequence.watched:
            reason = self._watch(sequence, token)
        if reason is None and len(sequence.token_ids) >= sequence.max_total:
            reason = "length"
        return text, reason, flush

    @staticmethod
    def _watch(sequence: Sequence, token: int) -> str | None:
        """Tell a token to what follows the answer; "stop" where one of them ends it. Raises GrammarError."""
        if sequence.grammar is not None:
            sequence.grammar.accept(token)
            if sequence.grammar.failure is not None:
                raise GrammarError(sequence.grammar.failure)
            if sequence.grammar.finished:
                return "stop"
        circles = sequence.repetition is not None and sequence.repetition.push(token)
        return "stop" if circles and sequence.num_output >= sequence.params.min_tokens else None

    def _finish(
        self,
        sequence: Sequence,
        reason: str,
        drawn: Drawn | None = None,
        text: str = "",
        *,
        said: int = 0,
        error: str | None = None,
        flush: bool = True,
    ) -> StepOutput:
        """The one way in which a choice ends: everything it held is free, and this is its last output.

        Of what was `drawn` the first `said` tokens belong to the answer.
        """
        if drawn is not None and said < len(drawn.tokens):
            del drawn.tokens[said:]
            if drawn.logprobs is not None:
                del drawn.logprobs[said:]
        if flush and sequence.detokenizer is not None:
            text += sequence.detokenizer.finish()
        if reason == "stop" and sequence.calls is not None and sequence.calls.called:
            reason = "tool_calls"
        output = self._output(sequence, drawn, text)
        output.finish_reason = sequence.finish_reason = reason
        output.error = error
        leaving = self.chats.leaving(sequence)
        self.scheduler.release(sequence, trusted=reason != "error")
        if leaving is not None:
            self.chats.left(sequence, *leaving)
        if self.speculation is not None:
            self.speculation.forget(sequence)
        choices = self._live[sequence.request_id]
        choices.remove(sequence)
        if not choices:
            del self._live[sequence.request_id]
        return output

    def _output(self, sequence: Sequence, drawn: Drawn | None = None, text: str = "") -> StepOutput:
        output = StepOutput(
            request_id=sequence.request_id,
            index=sequence.index,
            new_token_ids=[] if drawn is None else drawn.tokens,
            text=text,
            prompt_tokens=sequence.prompt_len,
            cached_tokens=sequence.num_cached,
            completion_tokens=len(sequence.token_ids) - sequence.prompt_len,
        )
        if sequence.calls is not None:
            output.tool_calls = sequence.calls.take()
        if drawn is not None:
            output.logprobs = drawn.logprobs
            if drawn.prompt_logprobs is not None:
                output.prompt_logprobs = drawn.prompt_logprobs
                sequence.num_scored += len(drawn.prompt_logprobs)
        if not sequence.started and (drawn is not None or sequence.state is SequenceState.RUNNING):
            sequence.started = True
            if sequence.index:
                return output  # the prompt has been told and counted with the first choice
            output.started = (sequence.prompt_len, sequence.num_cached)
            self.totals["prompt_tokens"] += sequence.prompt_len
            self.totals["cached_tokens"] += sequence.num_cached
        return output

    def _release_running(self) -> list[str]:
        """End all requests that have a running choice; their ids."""
        failed = dict.fromkeys(s.request_id for s in self.scheduler.running if s.prompt_name is None)
        for request_id in failed:
            for sequence in list(self._live[request_id]):
                self._finish(sequence, "error", flush=False)
        for sequence in list(self.scheduler.running):
            self.prompts.end(sequence, trusted=False)
        return list(failed)

    # --- looking in -----------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, float]:
        """Totals since the start; `cached_tokens` of `prompt_tokens` were found in the prefix cache."""
        return snapshot.counters(self)

    def snapshot(self) -> dict[str, Any]:
        """The block table as lists; engine.snapshot says of what."""
        return snapshot.take(self.pool, self.scheduler, self.block_size, self.counters())

    def check_integrity(self) -> None:
        """Raise AssertionError naming what is wrong. Cheap enough to run whenever the engine goes idle."""
        self.pool.check_integrity()
        self.cache.check_integrity()
        running = self.scheduler.running
        held = Counter(block for sequence in running for block in sequence.blocks)
        for block in [block for block, refs in enumerate(self.pool.refs) if refs or block in held]:
            refs = self.pool.refs[block]
            assert refs == held[block], f"block {block} has {refs} references, {held[block]} are accounted for"
        rows = [sequence.row for sequence in running]
        assert len(set(rows)) == len(rows), "two running sequences share a row"
        live = [sequence for choices in self._live.values() for sequence in choices]
        live += self.prompts.warming.values()
        for sequence in live:
            assert not sequence.finished, f"{sequence} has ended but is live"
            if sequence.state is SequenceState.RUNNING:
                assert sequence in running, f"{sequence} is not among the running"
                slots = len(sequence.block_table) * self.block_size
                assert sequence.num_computed <= slots, f"{sequence} has more tokens than slots"
                assert sequence.num_hashed * self.block_size <= sequence.num_computed, f"{sequence} promises too much"
                gone = [place for place, block in enumerate(sequence.block_table) if block == GONE]
                assert not gone or gone[-1] < sequence.num_behind, f"{sequence} gave back a block that it reads"
                assert not gone or gone[0] >= sequence.num_hashed, f"{sequence} is found by blocks that it gave back"
            else:
                assert not sequence.block_table, f"{sequence} waits and holds blocks"
        assert len(live) == len(running) + self.scheduler.num_waiting, "a live request is neither run nor queued"
