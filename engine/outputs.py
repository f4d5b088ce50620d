"""What an engine says: what one step did, what a whole answer was, and why something was refused or failed."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from engine.protocol import ToolCallPart
from engine.sampling_params import TokenLogprobs


class RequestRefused(Exception):
    """A request that the engine will not run. `param` names the field of the request that is the reason."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class StepError(Exception):
    """A step failed; `request_ids` ran, have ended without another output, and hold nothing any more."""

    def __init__(self, request_ids: list[str], cause: Exception) -> None:
        super().__init__(f"the step failed with {type(cause).__name__}: {cause}")
        self.request_ids = request_ids


class StepOutput(msgspec.Struct, kw_only=True, gc=False):
    """What one step did to one choice of one request.

    started: (prompt tokens, of them found in the cache), once, in the first output. text: what can be shown now; empty
    while it is held back. tool_calls: what was added to the functions that it calls, of a request with tools.
    logprobs, one per new token, and prompt_logprobs of a chunk's prompt tokens: when asked for. finish_reason: stop,
    length, tool_calls, abort, or error (then `error` says why). The last three fields are totals so far.
    """

    request_id: str
    index: int = 0
    started: tuple[int, int] | None = None
    new_token_ids: list[int] = []
    text: str = ""
    tool_calls: list[ToolCallPart] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    error: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class Completion:
    text: str
    token_ids: list[int]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
