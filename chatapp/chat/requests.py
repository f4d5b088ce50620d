"""What the engine is asked: made of what a caller sends, what the team gives, and what a conversation holds.

Everything that comes from outside is checked here, each complaint with the field it is about. Salts, limits and models
come from the Access, never from the caller's data. Knows neither Redis nor the order of things (services).
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from chatapp.audit.source import source
from chatapp.chat.instructions import Instructions
from chatapp.chat.models import Generation, Message, MessageRole, MessageStatus
from chatapp.chat.params import sampling_params
from chatapp.chat.text import HALF, joined
from chatapp.chat.tools import Toolbox
from chatapp.errors import BadInput, NotFound
from chatapp.files.prompt import with_question
from chatapp.files.selectors import prompt_blocks
from chatapp.limits.values import Limits
from chatapp.tenants.access import Access
from engine import tracing
from engine.protocol import ChatMessage, Request, SamplingParams, SystemText

NO_TOOLS = Toolbox()


def model_of(access: Access, wanted: str | None) -> str:
    """The name of the model that is meant. Raises NotFound for what the team may not use, as for what is not there."""
    tenant = access.tenant
    names = tenant.models
    if not names:
        raise NotFound(
            "None of your team's models is served any more. Ask those who run this site for another.",
            code="model_not_found",
            param="model",
        )
    if wanted in (None, "", "default"):
        return tenant.model
    if wanted in names:
        return str(wanted)
    raise NotFound(
        f"There is no model {str(wanted)[:100]!r} for your team; use {', '.join(map(repr, names))} or 'default'.",
        code="model_not_found",
        param="model",
    )


def digest_of(*parts: Any) -> str:
    """What a repeated idempotency key must come with again."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def history_of(last: Message) -> list[ChatMessage]:
    """The branch that ends in `last`, a question or an answer that is to go on, oldest first. Files stand in front of
    the text of the message that they came with.

    Answers that failed or have no text are left out, unless they were gone on with: an answer and what goes on with it
    are one message.
    """
    by_id = {message.pk: message for message in last.conversation.messages.all()}
    chain: list[Message] = []
    message: Message | None = last
    goes_on = True  # the message behind this one is an answer too
    while message is not None:
        is_answer = message.role == MessageRole.ASSISTANT
        kept = message.status in (MessageStatus.DONE, MessageStatus.STOPPED) or (is_answer and goes_on)
        if message.text and kept:
            chain.append(message)
        goes_on = is_answer
        message = by_id.get(message.parent_id) if message.parent_id else None
    blocks = prompt_blocks([message.pk for message in chain])
    history: list[ChatMessage] = []
    for message in reversed(chain):
        role: Any = message.role
        text = with_question(blocks.get(message.pk, []), message.text)
        if role == MessageRole.ASSISTANT and history and history[-1].role == role:
            text = joined(history.pop().content, text)
        history.append(ChatMessage(role, text))
    if last.role == MessageRole.ASSISTANT:
        history[-1] = ChatMessage("assistant", history[-1].content.rstrip(HALF))
    return history


def derived_salt(secret: str, part: str) -> str:
    """A salt that nobody can make without both: narrower than each, never wider."""
    return hmac.new(secret.encode(), part.encode(), hashlib.sha256).hexdigest()[:32]


def wire_request(
    generation: Generation,
    access: Access,
    limits: Limits,
    history: list[ChatMessage],
    sampling: SamplingParams,
    given: Instructions,
    *,
    salt: str,
    own: str = "",
    leased: bool = False,
    tools: Toolbox = NO_TOOLS,
    continues: bool = False,
) -> Request:
    system = list(given.system)
    if own:
        system.append(SystemText(own, salt))
    return Request(
        id=str(generation.pk),
        tenant=str(access.tenant.pk),
        model=generation.model,
        messages=history,
        system=system,
        salt=salt,
        tools=tools.tools,
        tool_choice=tools.choice,
        tool_name=tools.name,
        parallel_tool_calls=tools.parallel,
        continues=continues,
        prompt=given.name,
        prompt_version=str(given.version.pk) if given.version is not None else "",
        params=sampling,
        deadline_ms=int(generation.deadline.timestamp() * 1000),
        weight=limits.weight,
        kv_share=limits.kv_share,
        max_prompt_tokens=limits.context_tokens or 0,
        leased=leased,
        conversation=str(generation.conversation_id or ""),
        request_id=source().request_id,
        traceparent=tracing.current() or source().traceparent,
    )


def sampling_of(limits: Limits, params: Mapping[str, Any] | None, defaults: Mapping[str, Any]) -> SamplingParams:
    whose = "your" if limits.own.output_tokens is not None else "your team's"
    return sampling_params(params or {}, most_tokens=limits.output_tokens, defaults=defaults, whose=whose)


def hides_prompt(sampling: SamplingParams) -> None:
    """The team's own prompt stands before a conversation, and not everybody may read it. Raises BadInput."""
    if sampling.prompt_logprobs is not None:
        raise BadInput(
            "prompt_logprobs would show your team's prompt; they are for prompts that stand for themselves.",
            param="prompt_logprobs",
        )
