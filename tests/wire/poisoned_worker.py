"""`python -m engine.worker`, but a prompt with the word POISON kills the process in its first step, as a faulty driver
might: the step that computes it, with all that is in it.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from engine import runner, worker

computed = runner.Runner.launch


def launch(self: runner.Runner, batch: Any, behind: Any) -> Any:
    if any(sequence.request_id in POISONED for sequence in batch):
        os.kill(os.getpid(), signal.SIGKILL)
    return computed(self, batch, behind)


POISONED: set[str] = set()
runner.Runner.launch = launch  # type: ignore[method-assign]

if __name__ == "__main__":
    from engine.llm_engine import LLMEngine

    added = LLMEngine.add_request

    def add_request(self: LLMEngine, request_id: str, prompt_token_ids: Any, *rest: Any, **options: Any) -> None:
        if "POISON" in self.tokenizer.decode(prompt_token_ids):
            POISONED.add(request_id)
        added(self, request_id, prompt_token_ids, *rest, **options)

    LLMEngine.add_request = add_request  # type: ignore[method-assign]
    sys.exit(worker.main())
