"""`python -m engine.worker`, whose engine hangs in its 40th step, as its device might, and is given up soon."""

from __future__ import annotations

import sys
import time
from typing import Any

from engine import bus, runner, worker

launched = runner.Runner.launch
steps = 0


def launch(self: runner.Runner, batch: Any, behind: Any) -> Any:
    global steps
    steps += 1
    if steps == 40:
        time.sleep(3600)
    return launched(self, batch, behind)


runner.Runner.launch = launch  # type: ignore[method-assign]
bus.HUNG_S = 2.0

if __name__ == "__main__":
    sys.exit(worker.main())
