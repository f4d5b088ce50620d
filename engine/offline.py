"""Many prompts at once without a server: `LLMEngine.generate`."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING

from engine.outputs import Completion
from engine.protocol import ChatMessage
from engine.regions import Region
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine


def generate(
    engine: LLMEngine, prompts: Iterable[str | list[int] | list[ChatMessage]], params: SamplingParams
) -> list[Completion]:
    """As `LLMEngine.generate`. After a refusal or a fault nothing of the call stays behind."""
    if engine.has_work():
        raise RuntimeError("generate needs the engine for itself, and other requests are live")
    answers: dict[tuple[str, int], Completion] = {}
    queue: list[tuple[str, list[int], SequenceOf[Region]]] = []
    for number, prompt in enumerate(prompts):
        request_id = f"generate-{number}"
        regions: SequenceOf[Region] = ()
        if isinstance(prompt, str):
            prompt_ids = engine.tokenizer.encode(prompt, special=True)
        elif messages := [message for message in prompt if isinstance(message, ChatMessage)]:
            prompt_ids, regions = engine.tokenizer.render_chat([], messages, "")
        else:
            prompt_ids = [token for token in prompt if not isinstance(token, ChatMessage)]
        queue.append((request_id, prompt_ids, regions))
        for index in range(params.n):
            answers[request_id, index] = Completion(
                text="", token_ids=[], finish_reason="", prompt_tokens=len(prompt_ids), cached_tokens=0
            )
    try:
        for request_id, prompt_ids, regions in queue:
            engine.add_request(request_id, prompt_ids, params, regions=regions)
        while engine.has_work():
            for output in engine.step():
                answer = answers[output.request_id, output.index]
                answer.text += output.text
                answer.token_ids += output.new_token_ids
                answer.cached_tokens = output.cached_tokens
                if output.logprobs is not None:
                    answer.logprobs = (answer.logprobs or []) + output.logprobs
                if output.prompt_logprobs is not None:
                    answer.prompt_logprobs = (answer.prompt_logprobs or []) + output.prompt_logprobs
                answer.finish_reason = output.finish_reason or answer.finish_reason
    finally:
        for request_id, _, _ in queue:  # after a refusal or a fault nothing of this call stays behind
            engine.abort(request_id)
        engine.step()  # it has only their ends to tell
    return list(answers.values())
