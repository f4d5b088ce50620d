"""The KV planner for operators: how many blocks a memory holds, how many sequences those, and what last blocks waste.

All figures are engine.kv_plan's, as those of `python -m engine.plan`. The page is a form whose address is the question;
with scripts, its sliders fetch the figures anew (`figures`), else a button does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from chatapp.accounts.operators import is_operator
from chatapp.dashboard.planner_forms import Choices, PlannerForm, known_shapes
from engine import kv_plan

CELLS = 16
"""Blocks of a sequence that are drawn; of more, the first and the last ENDS."""
ENDS = 6
CELL, STEP = 12, 14
MOST_SHOWN = 12


@dataclass(frozen=True)
class Cell:
    """A block as a square: `filled` of its width holds tokens."""

    x: int
    filled: str
    shared: bool


@dataclass(frozen=True)
class Drawn:
    """A sequence in blocks. `skipped`: blocks between those drawn at its beginning and its end."""

    tokens: int
    times: int
    blocks: int
    unused: int
    shared: int
    cells: Sequence[Cell]
    width: int
    gap_x: int | None
    skipped: int


@dataclass(frozen=True)
class OfSize:
    """What one block size means. `height`: of its bar, in a hundred of the chart."""

    size: int
    chosen: bool
    share: float
    slots: float
    blocks_each: float
    fit: int
    height: str
    y: str
    address: str


@dataclass(frozen=True)
class OfLength:
    tokens: int
    alone: int
    sharing: int | None


@dataclass(frozen=True)
class Figures:
    choices: Choices
    token_bytes: int
    block_bytes: int
    blocks: int
    tokens: int
    fit: int
    fit_alone: int
    sharing: bool
    whole_context: int
    waste: kv_plan.Waste
    count: int
    mean: float
    sizes: Sequence[OfSize]
    top: float
    lengths: Sequence[OfLength]
    drawn: Sequence[Drawn]
    undrawn: int
    repeated: bool


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    form = _form(request)
    context = {
        **admin.site.each_context(request),
        "title": "KV planner",
        "form": form,
        "shapes": {name: [one.layers, one.kv_heads, one.head_dim, one.context] for name, one in known_shapes().items()},
        **_context(form),
    }
    return TemplateResponse(request, "dashboard/planner.html", context)


@require_safe
def figures(request: HttpRequest) -> HttpResponse:
    """The part of the page that its script puts in place of the one before."""
    return TemplateResponse(request, "dashboard/planner_figures.html", _context(_form(request)))


def _form(request: HttpRequest) -> PlannerForm:
    if not is_operator(request.user):
        raise PermissionDenied
    form = PlannerForm(request.GET.dict())
    form.is_valid()
    return form


def _context(form: PlannerForm) -> dict[str, Any]:
    wrong = [(form.fields[name], name, errors) for name, errors in form.errors.items() if name in form.fields]
    choices = form.cleaned_data.get("choices")
    asked = {name: form.data[name] for name in form.fields}
    return {
        "wrong": [{"label": field.label, "name": name, "errors": errors} for field, name, errors in wrong],
        "plan": plan(choices, asked) if choices and not wrong else None,
    }


def plan(choices: Choices, asked: dict[str, str]) -> Figures:
    """`asked`: the fields of the address, which links to other block sizes keep."""
    size, lengths = choices.block_size, choices.lengths
    token = kv_plan.token_bytes(choices.shape, choices.kind)
    blocks = kv_plan.blocks_that_fit(choices.memory, size, token)
    sizes, top = _by_size(choices, token, asked)
    shown = choices.shown[:MOST_SHOWN]
    return Figures(
        choices=choices,
        token_bytes=token,
        block_bytes=size * token,
        blocks=blocks,
        tokens=blocks * size,
        fit=kv_plan.mix_that_fits(blocks, size, lengths, choices.prefix),
        fit_alone=kv_plan.mix_that_fits(blocks, size, lengths),
        sharing=kv_plan.shared_blocks(max(lengths), size, choices.prefix) > 0,
        whole_context=choices.memory // (choices.shape.context * token),
        waste=kv_plan.waste(lengths, size),
        count=lengths.total(),
        mean=kv_plan.mean(lengths),
        sizes=sizes,
        top=top,
        lengths=_by_length(choices, blocks),
        drawn=[_draw(length, lengths[length], choices) for length in shown],
        undrawn=len(choices.shown) - len(shown),
        repeated=any(lengths[length] > 1 for length in shown),
    )


def _by_size(choices: Choices, token: int, asked: dict[str, str]) -> tuple[list[OfSize], float]:
    sizes = sorted({*kv_plan.BLOCK_SIZES, choices.block_size})
    wastes = {size: kv_plan.waste(choices.lengths, size) for size in sizes}
    top = max(one.share for one in wastes.values())
    found = []
    for size, one in wastes.items():
        height = 100 * one.share / top if top else 0.0
        fit = kv_plan.mix_that_fits(choices.memory // (size * token), size, choices.lengths, choices.prefix)
        found.append(
            OfSize(
                size=size,
                chosen=size == choices.block_size,
                share=one.share,
                slots=one.slots,
                blocks_each=one.blocks,
                fit=fit,
                height=f"{height:.2f}",
                y=f"{100 - height:.2f}",
                address=f"{reverse('planner')}?{urlencode({**asked, 'block': str(size)})}",
            )
        )
    return found, top


def _by_length(choices: Choices, blocks: int) -> list[OfLength]:
    """Of powers of two up to the context, and of the context."""
    context, size, prefix = choices.shape.context, choices.block_size, choices.prefix
    lengths = [2**power for power in range(9, 31) if 2**power < context]
    return [
        OfLength(
            tokens=length,
            alone=kv_plan.sequences_that_fit(blocks, size, length),
            sharing=kv_plan.sequences_that_fit(blocks, size, length, prefix) if 0 < prefix < length else None,
        )
        for length in [*lengths[-7:], context]
    ]


def _draw(length: int, times: int, choices: Choices) -> Drawn:
    size = choices.block_size
    blocks = kv_plan.blocks_of(length, size)
    unused = kv_plan.unused_slots(length, size)
    shared = kv_plan.shared_blocks(length, size, choices.prefix)
    places = list(range(blocks)) if blocks <= CELLS else [*range(ENDS), *range(blocks - ENDS, blocks)]
    gap = 0 if blocks <= CELLS else 2 * STEP
    cells = [
        Cell(
            x=place * STEP + (gap if place >= ENDS else 0),
            filled=f"{CELL * (size - unused) / size if number == blocks - 1 else CELL:.2f}",
            shared=number < shared,
        )
        for place, number in enumerate(places)
    ]
    return Drawn(
        tokens=length,
        times=times,
        blocks=blocks,
        unused=unused,
        shared=shared,
        cells=cells,
        width=len(cells) * STEP + gap,
        gap_x=ENDS * STEP + gap // 2 if gap else None,
        skipped=blocks - len(cells),
    )
