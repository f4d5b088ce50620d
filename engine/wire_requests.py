"""What a request of the wire means to the engine: its prompt, its grammar, how its answers call functions.

Owns what is refused before a first step for what it asks (tools that the model cannot use, a raw prompt with tools),
and the choices that OpenAI's API leaves to a server:

- A raw text is tokenized as vLLM does for /v1/completions: control tokens written in it count, and the tokenizer adds
  its own beginning. All of it has the request's salt, as has a prompt in token ids.
- With `tool_choice` none the tools are left out of the prompt: "the model will not call any tool" is then true, no
  answer need be read for calls, and a model without tools can serve it. (vLLM's option exclude-tools-when-none.)
- An answer that goes on where it was (`continues`) keeps to no form and calls nothing: what it has said already was not
  held to either, as far as anybody here can tell.
- A call that is forced, and one of a tool that is `strict`, keeps to its schema. Where only the former is so and the
  schema cannot be enforced in full, its arguments are any JSON object.

Functions may be called in any thread. Knows no runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.grammar_spec import GrammarError
from engine.outputs import RequestRefused
from engine.protocol import Request, Tool
from engine.regions import Region
from engine.tool_calls import CallForm, CallReading
from engine.tool_grammar import ToolGrammar, check_schema, tool_grammar

if TYPE_CHECKING:
    from engine.grammar import CompiledGrammar
    from engine.llm_engine import LLMEngine
    from engine.tokenizer import Tokenizer


def is_raw(request: Request) -> bool:
    return request.text is not None or request.token_ids is not None


def prompt_param(request: Request) -> str:
    """The caller's word for the prompt."""
    return "prompt" if is_raw(request) else "messages"


def tools_of(request: Request) -> list[Tool]:
    """The tools that the model is told of."""
    return [] if request.tool_choice == "none" else request.tools


def check(tokenizer: Tokenizer, request: Request) -> None:
    """Raises RequestRefused for what no prompt can be made of."""
    tools = tools_of(request)
    forced = request.tool_choice in ("required", "function")
    if is_raw(request):
        if tools or forced:
            _refuse("A raw prompt has no tools; send messages, or leave the tools out.", "tools")
        return
    if request.continues:
        _check_continuation(request)
    spoken = any(message.tool_calls or message.role == "tool" for message in request.messages)
    if (tools or spoken) and tokenizer.call_form is None:
        raise RequestRefused(
            "tools_not_supported",
            f"The model {request.model} cannot call functions: its chat template knows of no tools in a form that can "
            f"be read here. "
            + (
                "Leave tools out, set tool_choice to none, or choose another model."
                if tools
                else "Send the messages without tool_calls and without the role tool, or choose another model."
            ),
            "tools" if tools else "messages",
        )
    if forced and not tools:
        _refuse(f"tool_choice {request.tool_choice} needs tools to choose from; send tools.", "tool_choice")
    if request.tool_choice == "function" and request.tool_name not in {tool.name for tool in tools}:
        _refuse(f"tool_choice names {request.tool_name!r}, which is not among the tools.", "tool_choice")
    if tools and request.params.grammar is not None:
        _refuse(
            "An answer cannot both keep to a form of its own and call tools; leave response_format or the tools out.",
            "response_format",
        )
    for tool in tools:
        try:
            check_schema(tool)
        except GrammarError as error:
            _refuse(str(error), "tools")


def _check_continuation(request: Request) -> None:
    last = request.messages[-1] if request.messages else None
    if last is None or last.role != "assistant" or not last.content or last.tool_calls:
        _refuse("Only an answer that has a text can be gone on with, as the last of the messages.", "messages")
    if tools_of(request) or request.params.grammar is not None:
        _refuse(
            "An answer that goes on where it was can neither call tools nor keep to a form; leave tools and "
            "response_format out.",
            "tools" if request.tools else "response_format",
        )


def _refuse(message: str, param: str) -> None:
    raise RequestRefused("invalid_request", message, param)


def needs_grammar(request: Request) -> bool:
    """Whether there is anything to compile, which takes a while."""
    tools = tools_of(request)
    forced = request.tool_choice in ("required", "function")
    return request.params.grammar is not None or bool(tools and (forced or any(tool.strict for tool in tools)))


def compiled(engine: LLMEngine, request: Request) -> CompiledGrammar:
    """What the answers must keep to. Raises RequestRefused."""
    if request.params.grammar is not None:
        return engine.compile_grammar(request.params.grammar, request.tenant)
    tools = tools_of(request)
    strict = {tool.name for tool in tools if tool.strict}
    forced = request.tool_choice in ("required", "function")
    if request.tool_choice == "function":
        tools = [tool for tool in tools if tool.name == request.tool_name]

    def compile_for(enforced: set[str]) -> CompiledGrammar:
        grammar = _tool_grammar(engine.tokenizer, request, tools, enforced)
        return engine.compile_grammar(grammar, request.tenant, "tools")

    if forced:
        try:
            return compile_for({tool.name for tool in tools})
        except RequestRefused:
            if all(tool.strict for tool in tools):
                raise
    return compile_for(strict)


def _tool_grammar(tokenizer: Tokenizer, request: Request, tools: list[Tool], enforced: set[str]) -> ToolGrammar:
    from engine.grammar import JSON_OPTIONS

    assert tokenizer.call_form is not None
    return tool_grammar(
        tokenizer.call_form,
        tools,
        forced=request.tool_choice in ("required", "function"),
        parallel=request.parallel_tool_calls and request.tool_choice != "function",
        enforced=enforced,
        control=tokenizer.control_id,
        options=JSON_OPTIONS,
    )


def rendered(tokenizer: Tokenizer, request: Request) -> tuple[list[int], list[Region]]:
    """The prompt's tokens, and under which salts they are shared. Raises ChatTemplateError."""
    if is_raw(request):
        ids = (
            list(request.token_ids)
            if request.token_ids is not None
            else tokenizer.encode(request.text or "", special=True)
        )
        return ids, [Region(len(ids), request.salt)]
    if not request.continues:
        return tokenizer.render_chat(request.system, request.messages, request.salt, tools_of(request))
    *before, answer = request.messages
    return tokenizer.render_chat(request.system, before, request.salt, begun=answer.content)


def shared_tokens(request: Request, regions: list[Region]) -> int:
    """How many tokens at the prompt's head have a salt that more than this conversation or key knows."""
    return max((region.end for region in regions if region.salt != request.salt), default=0)


def reading(form: CallForm | None, request: Request) -> CallReading | None:
    """How the answers are to be read for calls; None: they are text."""
    tools = tools_of(request)
    if not tools or form is None:
        return None
    names = {request.tool_name} if request.tool_choice == "function" else {tool.name for tool in tools}
    single = not request.parallel_tool_calls or request.tool_choice == "function"
    return CallReading(form, frozenset(names), request.id, 1 if single else None)
