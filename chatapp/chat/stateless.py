"""Answers to what a caller sends whole: a conversation, or bare prompts. Nothing of them is kept but what they used.

Accepted as any answer is (chatapp.chat.services); several prompts are accepted together, or none of them is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
from django.conf import settings
from django.db import IntegrityError, transaction

from chatapp.chat.choices import CHAT_DEFAULTS
from chatapp.chat.instructions import ASSISTANT_MODEL, Instructions, of_conversation, of_draft, of_model, of_team
from chatapp.chat.messages import parse_messages
from chatapp.chat.models import Conversation, Generation
from chatapp.chat.params import new_seed
from chatapp.chat.queueing import (
    accepted,
    known,
    new_generation,
    queue_all,
    release,
    reserved,
    says_length,
    submitting,
    without_answer,
)
from chatapp.chat.requests import NO_TOOLS, derived_salt, digest_of, hides_prompt, model_of, sampling_of, wire_request
from chatapp.chat.text import plain
from chatapp.chat.tools import Toolbox, toolbox
from chatapp.errors import BadInput, Forbidden, NotFound
from chatapp.limits.admission import Admission
from chatapp.limits.selectors import limits_of
from chatapp.limits.values import least
from chatapp.tenants.access import Access
from chatapp.tenants.permissions import Permission
from engine import protocol
from engine.protocol import ChatMessage

# What OpenAI's completions do where nothing is said: whoever sends a bare prompt wants the model as it is.
RAW_DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 16}
LONGEST_SALT = 1000
MOST_PROMPTS = 128

Prompt = str | Sequence[int]
Within = Callable[[Generation], None]


@dataclass(frozen=True)
class _Asked:
    """What one answer is to: a conversation with the caller's system texts, or a prompt that stands for itself."""

    history: list[ChatMessage] = field(default_factory=list)
    own: str = ""
    text: str | None = None
    token_ids: list[int] | None = None


def complete(
    *,
    access: Access,
    messages: Sequence[Mapping[str, Any]] | None = None,
    text: str | None = None,
    token_ids: Sequence[int] | None = None,
    params: Mapping[str, Any] | None = None,
    model: str | None = None,
    assistant_id: object = None,
    draft_id: object = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] | None = None,
    parallel_tool_calls: bool | None = None,
    cache_salt: str | None = None,
    idempotency_key: str | None = None,
    leased: bool = True,
    restart: bool = False,
    deadline: datetime | None = None,
    within: Within | None = None,
) -> Generation:
    """A stateless answer to a list of messages (chatapp.chat.messages); or to a prompt that stands for itself, as text
    or in tokens, which no template is applied to: by who may send system messages, as nothing of the team's is in it.

    The team's default assistant answers, or the one that `assistant_id` or the model name assistant:<slug> names.
    `draft_id`: a prompt's draft or version is tried out instead, by who may edit prompts; it shares no KV with anybody.
    `tools`, `tool_choice`: as OpenAI has them (chatapp.chat.tools).

    It holds a lease: the caller's process renews it (chatapp.streaming.lease), or it is cancelled; unless `leased` is
    false. `cache_salt` narrows the sharing of KV blocks further; it never widens it. `restart`: a repeated idempotency
    key whose answer has ended without one (its caller went away, the engine stopped) begins it anew, and does not say
    the same error again. `deadline`: when it ends at the latest. `within` runs in the transaction that accepts it,
    after its row is written: for rows of those who keep the answer. Raises as services.ask, and Forbidden.
    """
    access.require(Permission.CHAT)
    raw = text is not None or token_ids is not None
    if raw:
        if messages is not None:
            raise BadInput("Send either messages or a prompt that stands for itself.", param="messages")
        if draft_id is not None or assistant_id is not None or tools:
            raise BadInput("A prompt that stands for itself takes neither instructions nor tools.", param="prompt")
        given, said = Instructions(()), (text if text is not None else token_ids)
        asked = [_raw(access, said, "prompt")]
        _no_assistant(model)
    else:
        given = of_team(access, assistant_id=assistant_id) if draft_id is None else of_draft(access, draft_id)
        if draft_id is None and model is not None and (of := of_model(access, model)) is not None:
            given, model = of, None
        history, own = parse_messages(messages)  # type: ignore[arg-type]  # None is a caller's mistake too
        if own:
            _may_instruct(access, "messages")
        asked, said = [_Asked(history, own)], None
    box = toolbox(tools, tool_choice, parallel_tool_calls)
    name = model_of(access, model)
    extra = [tools, tool_choice, parallel_tool_calls] if (tools or tool_choice) else []
    what = ["raw", said] if raw else messages
    digest = digest_of(what, name, cache_salt, params, *given.digest, *extra)
    return _accept(
        access, asked, given, name, digest, params=params, box=box, cache_salt=cache_salt,
        idempotency_key=idempotency_key, leased=leased, restart=restart, deadline=deadline, within=within,
    )[0]  # fmt: skip


def complete_all(
    *,
    access: Access,
    prompts: Sequence[Prompt],
    params: Mapping[str, Any] | None = None,
    model: str | None = None,
    cache_salt: str | None = None,
    idempotency_key: str | None = None,
    leased: bool = True,
    restart: bool = False,
    deadline: datetime | None = None,
    within: Within | None = None,
) -> list[Generation]:
    """An answer to each of several prompts that stand for themselves, accepted together or not at all. As `complete`.

    A repeated idempotency key gives the same ones again.
    """
    access.require(Permission.CHAT)
    if not 0 < len(prompts) <= MOST_PROMPTS:
        raise BadInput(f"prompt may hold 1 to {MOST_PROMPTS} prompts, not {len(prompts)}.", param="prompt")
    several = len(prompts) > 1
    asked = [_raw(access, prompt, f"prompt[{at}]" if several else "prompt") for at, prompt in enumerate(prompts)]
    _no_assistant(model)
    name = model_of(access, model)
    digest = digest_of(["raw", *prompts], name, cache_salt, params)
    return _accept(
        access, asked, Instructions(()), name, digest, params=params, box=NO_TOOLS, cache_salt=cache_salt,
        idempotency_key=idempotency_key, leased=leased, restart=restart, deadline=deadline, within=within,
    )  # fmt: skip


def complete_in(
    *,
    access: Access,
    conversation: Conversation,
    history: list[ChatMessage],
    params: Mapping[str, Any],
    idempotency_key: str,
    deadline: datetime,
) -> Generation:
    """An answer beside a conversation of the asker's, which keeps nothing of it: under its instructions and with its
    salt, so that the engine finds what the conversation has computed already. It holds no lease. Raises as `complete`.
    """
    access.require(Permission.CHAT)
    given = of_conversation(access, conversation)
    name = conversation.model if conversation.model in access.tenant.models else model_of(access, None)
    digest = digest_of("beside", str(conversation.pk), [[one.role, one.content] for one in history], name, params)
    salt = derived_salt(access.tenant.salt, conversation.salt)
    return _accept(
        access, [_Asked(history)], given, name, digest, params=params, box=NO_TOOLS, cache_salt=None, salt=salt,
        idempotency_key=idempotency_key, leased=False, restart=False, deadline=deadline, within=None,
    )[0]  # fmt: skip


# --- parts --------------------------------------------------------------------------------------------------------


def _raw(access: Access, prompt: Any, param: str) -> _Asked:
    _may_instruct(access, param)
    if isinstance(prompt, str):
        return _Asked(text=plain(prompt, param=param, longest=settings.OCTAVO_MAX_MESSAGE))
    if not isinstance(prompt, list | tuple) or not prompt:
        raise BadInput(f"{param} must be a text, or a list of at least one token id.", param=param)
    if any(type(token) is not int or not 0 <= token < 2**31 for token in prompt):
        raise BadInput(f"{param} holds something that is no token id.", param=param)
    return _Asked(token_ids=list(prompt))


def _may_instruct(access: Access, param: str) -> None:
    if access.may(Permission.OWN_SYSTEM_MESSAGE):
        return
    if param == "messages":
        raise Forbidden(
            "This key may not send system messages; your team's prompt is always there. "
            "Ask an admin for a key that may.",
            param=param,
        )
    raise Forbidden(
        "This key may not send bare prompts, as your team's prompt would not be in them. Send messages instead, or ask "
        "an admin for a key that may send system messages.",
        param=param,
    )


def _no_assistant(model: str | None) -> None:
    if model is not None and model.startswith(ASSISTANT_MODEL):
        raise NotFound(
            "An assistant answers messages; name a model for a prompt that stands for itself.",
            code="model_not_found",
            param="model",
        )


@submitting
def _accept(
    access: Access,
    asked: Sequence[_Asked],
    given: Instructions,
    model: str,
    digest: str,
    *,
    params: Mapping[str, Any] | None,
    box: Toolbox,
    cache_salt: str | None,
    idempotency_key: str | None,
    leased: bool,
    restart: bool,
    deadline: datetime | None,
    within: Within | None,
    salt: str | None = None,
) -> list[Generation]:
    limits = limits_of(access)
    at_once = least(limits.team.concurrent_answers, limits.own.concurrent_answers)
    if at_once is not None and len(asked) > at_once:
        raise BadInput(
            f"prompt holds {len(asked)} prompts, and {at_once} answers at once are allowed; send fewer together.",
            param="prompt",
        )
    raw = bool(asked[0].text is not None or asked[0].token_ids is not None)
    defaults: Mapping[str, Any]
    if raw:
        defaults = {**RAW_DEFAULTS, "max_tokens": min(RAW_DEFAULTS["max_tokens"], limits.output_tokens)}
    else:
        defaults = {**CHAT_DEFAULTS, "max_tokens": limits.unsaid_output}
    sampling = sampling_of(limits, params, defaults)
    if not raw:
        hides_prompt(sampling)
    if box.tools and box.choice in ("required", "function") and sampling.grammar is not None:
        raise BadInput("response_format cannot be held to where a tool must be called.", param="response_format")
    keys = [_key_of(idempotency_key, at) for at in range(len(asked))]
    found = _known_all(access, keys, digest)
    if found is not None and restart and any(without_answer(one) for one in found):
        release(found)
        found = None
    if found is not None:
        return found
    salt = salt or _salt(access, given, cache_salt)
    pairs: list[tuple[Generation, protocol.Request]] = []
    for at, one in enumerate(asked):
        generation = new_generation(access, model, keys[at], digest, deadline)
        generation.prompt_version = given.version
        drawn = sampling
        if at and (params or {}).get("seed") is None:
            # Else the same prompt twice would be answered with the same words.
            drawn = msgspec.structs.replace(sampling, seed=new_seed())
        request = wire_request(
            generation, access, limits, one.history, drawn, given, salt=salt, own=one.own, leased=leased, tools=box
        )
        pairs.append((generation, msgspec.structs.replace(request, text=one.text, token_ids=one.token_ids)))
    admission = Admission(access, limits)
    admission.enter()
    length_said = raw or says_length(params)

    @transaction.atomic
    def accept() -> list[Generation]:
        for generation, request in pairs:
            generation.request = protocol.encode(reserved(admission, generation, request, length_said))
            generation.save(force_insert=True)
            if within is not None:
                within(generation)
        return [generation for generation, _ in pairs]

    try:
        generations = accepted(access, accept)
    except IntegrityError:
        found = _known_all(access, keys, digest)  # a twin of this request was a moment faster
        if found is None:
            raise
        admission.leave()
        return found
    queue_all(generations, admission)
    return generations


def _salt(access: Access, given: Instructions, cache_salt: str | None) -> str:
    owner = access.key if access.key is not None else access.user
    assert owner is not None
    salt = derived_salt(access.tenant.salt, getattr(owner, "salt", str(owner.pk)))
    if given.salt:
        salt = derived_salt(salt, given.salt)
    if cache_salt not in ("", None):
        salt = derived_salt(salt, plain(cache_salt, param="cache_salt", longest=LONGEST_SALT))
    return salt


def _key_of(idempotency_key: str | None, at: int) -> str | None:
    """Each answer has a key of its own: the first one the caller's, the others what nobody sends by chance."""
    if idempotency_key is None or at == 0:
        return idempotency_key
    return f"{hashlib.sha256(idempotency_key.encode('utf-8', 'replace')).hexdigest()}/{at}"


def _known_all(access: Access, keys: Sequence[str | None], digest: str) -> list[Generation] | None:
    """The answers that these keys have already started, all of them, as they were accepted together."""
    first = known(access, keys[0], digest)
    if first is None:
        return None
    others = [known(access, key, digest) for key in keys[1:]]
    found = [first, *(other for other in others if other is not None)]
    for one in found:
        one.repeated = True
    return found
