"""Compiles a grammar in a process of its own, with a bounded share of the machine; run by `engine.grammar` as a script.

The library bounds most of what a compilation costs, but not all: some two dozen patterns under one allOf keep it busy
for ever, and nothing can stop a thread that computes. A process can be stopped. This one takes a tenth of a second,
once for each new grammar, and needs neither the model's vocabulary nor torch.

Reads {"grammar": ..., "limits": ...} from standard input and writes the library's complaint, nothing when it has none.
"""

from __future__ import annotations

import json
import resource
import sys

CPU_S = 1
DATA_BYTES = 1 << 29


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from llguidance import LLMatcher, LLParserLimits

    asked = json.load(sys.stdin)
    sys.stdout.write(LLMatcher.validate_grammar(asked["grammar"], limits=LLParserLimits(**asked["limits"])))


if __name__ == "__main__":
    main()
