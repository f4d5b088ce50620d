"""One table: what was done, what came of the answers, and how long one stood still at most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from tests.chaos.checks import INTERRUPTED, LOST, REPEATED, REWRITTEN, UNANSWERED, WHOLE, Findings
from tests.chaos.clients import Seen
from tests.chaos.trouble import Done

SEVERAL = "several within one gap"
AFTER_S = 0.5
"""What a process had said comes through this much later at most, so a gap that a kill makes may begin behind it."""


def worst_gaps(seen: Sequence[Seen], done: Sequence[Done]) -> dict[str, tuple[float, int]]:
    """By kind of event: the longest time without a new token (or the end) of an answer that was being written, and how
    many such gaps were looked at. A gap over more than one event counts for none of them."""
    found: dict[str, tuple[float, int]] = {one.event.kind: (0.0, 0) for one in done}
    for one in seen:
        times = [*one.came_at, one.ended_at] if one.came_at else []
        for begin, end in pairwise(times):
            within = [event for event in done if begin - AFTER_S <= event.at <= end]
            if not within:
                continue
            kind = within[0].event.kind if len(within) == 1 else SEVERAL
            worst, count = found.get(kind, (0.0, 0))
            found[kind] = (max(worst, end - begin), count + 1)
    return found


def table(seed: int, seen: Sequence[Seen], done: Sequence[Done], findings: Findings, whole_s: float) -> str:
    gaps = worst_gaps(seen, done)
    counts = Counter(one.event.kind for one in done)
    lines = [f"seed {seed}", "", f"{'event':<26}{'times':>6}{'worst gap, s':>15}{'gaps looked at':>17}"]
    for kind in sorted(gaps, key=lambda kind: (kind == SEVERAL, kind)):
        worst, count = gaps[kind]
        times = str(counts[kind]) if kind in counts else ""
        lines.append(f"{kind:<26}{times:>6}{(f'{worst:.1f}' if count else '-'):>15}{count:>17}")
    verdicts = findings.verdicts
    reasons = ", ".join(f"{why} {count}" for why, count in sorted(findings.why.items()))
    lines += [
        "",
        f"{'events':<26}{len(done):>6}",
        f"{'answers':<26}{len(seen):>6}",
        f"{'  byte for byte':<26}{verdicts[WHOLE]:>6}",
        f"{'  lost':<26}{verdicts[LOST] + verdicts[UNANSWERED]:>6}",
        f"{'  repeated':<26}{verdicts[REPEATED]:>6}",
        f"{'  rewritten':<26}{verdicts[REWRITTEN]:>6}",
        f"{'  interrupted':<26}{verdicts[INTERRUPTED]:>6}" + (f"   ({reasons})" if reasons else ""),
        f"{'streams cut, asked again':<26}{findings.cuts:>6}   (/v1/chat/completions, whose web process went)",
        f"{'sockets opened again':<26}{sum(one.reconnected for one in seen):>6}   (/ws/ui and /v1/responses)",
        f"{'whole again after, s':<26}{whole_s:>6.1f}",
    ]
    for note, count in Counter(findings.notes).items():
        lines.append(f"  {count} x {note}" if count > 1 else f"  {note}")
    if findings.faults:
        lines += ["", f"{len(findings.faults)} FAULTS", *(f"  - {fault}" for fault in findings.faults)]
    return "\n".join(lines)
