"""Bars as figures of an SVG: positions in per cent, computed here, since pages carry no inline styles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chatapp.usage.selectors import Figures

HEIGHT = 100.0
GAP = 0.2


@dataclass(frozen=True)
class Bar:
    """From below: `output` tokens, and on top of them `prompt` tokens. All in the units of a 100 by 100 view box."""

    figures: Figures
    label: str
    x: str
    width: str
    prompt_y: str
    prompt_height: str
    output_y: str
    output_height: str


@dataclass(frozen=True)
class Chart:
    """`top` is the number of tokens of the highest bar; `marks` are the labels along the axis."""

    bars: Sequence[Bar]
    top: int
    marks: Sequence[str]


def chart(groups: Sequence[Figures], labels: Sequence[str]) -> Chart | None:
    """None where there is nothing to show."""
    top = max((group.tokens for group in groups), default=0)
    if not top:
        return None
    step = 100 / len(groups)
    bars = []
    for index, (group, label) in enumerate(zip(groups, labels, strict=True)):
        output, prompt = (HEIGHT * part / top for part in (group.output_tokens, group.prompt_tokens))
        bars.append(
            Bar(
                figures=group,
                label=label,
                x=f"{step * (index + GAP / 2):.3f}",
                width=f"{step * (1 - GAP):.3f}",
                prompt_y=f"{HEIGHT - output - prompt:.3f}",
                prompt_height=f"{prompt:.3f}",
                output_y=f"{HEIGHT - output:.3f}",
                output_height=f"{output:.3f}",
            )
        )
    return Chart(bars, top, [labels[0], labels[-1]] if len(labels) > 1 else [labels[0]])
