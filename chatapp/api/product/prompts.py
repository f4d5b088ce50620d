"""Assistants, their prompts' drafts and versions by HTTP: all that the pages can do."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from ninja import Field, Router, Schema, Status

from chatapp.api.product.base import AccessRequest, needs
from chatapp.chat.prompt_use import Use, use_of
from chatapp.prompts import selectors, services
from chatapp.prompts.diff import diff
from chatapp.prompts.measure import check_pace, measure
from chatapp.prompts.models import PromptVersion, SystemPrompt
from chatapp.prompts.text import clean_text
from chatapp.tenants.permissions import Permission

router = Router(tags=["prompts"])
READ, EDIT, PUBLISH = Permission.READ_PROMPTS, Permission.EDIT_PROMPTS, Permission.PUBLISH_PROMPTS
PAGE = 50


class VersionOut(Schema):
    """`number` is null of a draft, which has a `revision` to be sent with every change."""

    id: UUID
    number: int | None
    revision: int
    text: str
    note: str
    restores: int | None
    tokens: int | None
    created_at: datetime
    changed_at: datetime
    published_at: datetime | None
    by: str | None


class VersionItem(VersionOut):
    answers: int
    prompt_tokens: int
    cached_tokens: int
    hit_rate: float | None
    saved_prefill_s: float | None


class AssistantOut(Schema):
    id: UUID
    name: str
    slug: str
    description: str
    default: bool
    archived_at: datetime | None
    published: VersionOut | None
    has_draft: bool


class Assistants(Schema):
    items: list[AssistantOut]


class Versions(Schema):
    items: list[VersionItem]
    next: int | None


class NewAssistant(Schema):
    name: str
    description: str = ""


class AssistantChange(Schema):
    name: str | None = None
    description: str | None = None
    slug: str | None = None


class Move(Schema):
    direction: Literal["up", "down"]


class DraftIn(Schema):
    text: str
    revision: int = Field(0, ge=0, le=2**31 - 1)


class PublishIn(Schema):
    note: str
    revision: int = Field(ge=0, le=2**31 - 1)


class RollBackIn(Schema):
    note: str = ""


class MeasureIn(Schema):
    text: str


class MeasureOut(Schema):
    """`state`: exact, no_worker or no_answer; of the latter two the figures are 0 and `message` says why. `tokens` is
    what all conversations share, of which `own_tokens` are the text's. `too_long`: why it cannot be published."""

    state: str
    message: str
    tokens: int
    own_tokens: int
    blocks: int
    block_size: int
    unused_slots: int
    quota_blocks: int
    share: float
    context: int
    too_long: str


class SpanOut(Schema):
    text: str
    changed: bool


class SideOut(Schema):
    number: int
    spans: list[SpanOut]


class RowOut(Schema):
    kind: str
    old: SideOut | None
    new: SideOut | None
    count: int


class DiffOut(Schema):
    added: int
    removed: int
    rows: list[RowOut]


class Done(Schema):
    done: bool = True


def _name(version: PromptVersion) -> str | None:
    person = version.changed_by if version.is_draft else version.published_by
    return person.get_short_name() if person is not None else None


def _version(version: PromptVersion | None, use: Use | None = None) -> dict[str, Any] | None:
    if version is None:
        return None
    restores = version.restores
    shown = {
        field: getattr(version, field)
        for field in ("id", "revision", "text", "note", "tokens", "created_at", "changed_at", "published_at")
    }
    shown |= {
        "number": None if version.is_draft else version.number,
        "by": _name(version),
        "restores": restores.number if restores is not None else None,
    }
    if use is not None:
        shown |= {"hit_rate": use.hit_rate, "saved_prefill_s": use.saved_s}
        shown |= {name: getattr(use, name) for name in ("answers", "prompt_tokens", "cached_tokens")}
    return shown


def _assistant(one: SystemPrompt) -> dict[str, Any]:
    return {
        "id": one.pk,
        "name": one.name,
        "slug": one.slug,
        "description": one.description,
        "default": one.is_default,
        "archived_at": one.archived_at,
        "published": _version(one.published),
        "has_draft": selectors.draft(one) is not None,
    }


def _shown(request: Any, assistant_id: object) -> dict[str, Any]:
    return _assistant(selectors.assistant(request.auth.tenant, assistant_id))


# --- assistants ---------------------------------------------------------------------------------------------------


@router.get("/t/{slug}/prompts", response=Assistants, auth=needs(READ))
def list_assistants(request: AccessRequest, slug: str) -> Any:
    return {"items": [_assistant(one) for one in selectors.assistants(request.auth.tenant)]}


@router.post("/t/{slug}/prompts", response={201: AssistantOut}, auth=needs(EDIT))
def create_assistant(request: Any, slug: str, body: NewAssistant) -> Any:
    made = services.create_assistant(access=request.auth, name=body.name, description=body.description)
    return Status(201, _shown(request, made.pk))


@router.post("/t/{slug}/prompts/measure", response=MeasureOut, auth=needs(EDIT))
def measure_text(request: Any, slug: str, body: MeasureIn) -> Any:
    """How long a text would be as instructions. Nothing of it is kept. An engine renders it each time: 120 a minute for
    each who asks."""
    check_pace(request.auth)
    found = measure(request.auth.tenant, clean_text(body.text))
    return {**asdict(found), "share": found.share, "too_long": found.too_long}


@router.get("/t/{slug}/prompts/{uuid:assistant_id}", response=AssistantOut, auth=needs(READ))
def get_assistant(request: Any, slug: str, assistant_id: UUID) -> Any:
    return _shown(request, assistant_id)


@router.patch("/t/{slug}/prompts/{uuid:assistant_id}", response=AssistantOut, auth=needs(EDIT))
def change_assistant(request: Any, slug: str, assistant_id: UUID, body: AssistantChange) -> Any:
    services.change_assistant(access=request.auth, assistant_id=assistant_id, **body.dict())
    return _shown(request, assistant_id)


@router.post("/t/{slug}/prompts/{uuid:assistant_id}/move", response=Done, auth=needs(EDIT))
def move_assistant(request: Any, slug: str, assistant_id: UUID, body: Move) -> Any:
    services.move_assistant(access=request.auth, assistant_id=assistant_id, up=body.direction == "up")
    return {}


@router.post("/t/{slug}/prompts/{uuid:assistant_id}/default", response=AssistantOut, auth=needs(PUBLISH))
def make_default(request: Any, slug: str, assistant_id: UUID) -> Any:
    services.make_default(access=request.auth, assistant_id=assistant_id)
    return _shown(request, assistant_id)


@router.post("/t/{slug}/prompts/{uuid:assistant_id}/archive", response=AssistantOut, auth=needs(PUBLISH))
def archive_assistant(request: Any, slug: str, assistant_id: UUID) -> Any:
    services.archive_assistant(access=request.auth, assistant_id=assistant_id)
    return _shown(request, assistant_id)


@router.post("/t/{slug}/prompts/{uuid:assistant_id}/restore", response=AssistantOut, auth=needs(PUBLISH))
def restore_assistant(request: Any, slug: str, assistant_id: UUID) -> Any:
    services.restore_assistant(access=request.auth, assistant_id=assistant_id)
    return _shown(request, assistant_id)


@router.post("/t/{slug}/prompts/{uuid:assistant_id}/unpublish", response=AssistantOut, auth=needs(PUBLISH))
def unpublish(request: Any, slug: str, assistant_id: UUID) -> Any:
    services.unpublish(access=request.auth, assistant_id=assistant_id)
    return _shown(request, assistant_id)


# --- drafts and versions ------------------------------------------------------------------------------------------


@router.get("/t/{slug}/prompts/{uuid:assistant_id}/draft", response=VersionOut | None, auth=needs(READ))
def get_draft(request: Any, slug: str, assistant_id: UUID) -> Any:
    return _version(selectors.draft(selectors.assistant(request.auth.tenant, assistant_id)))


@router.put("/t/{slug}/prompts/{uuid:assistant_id}/draft", response=VersionOut, auth=needs(EDIT))
def save_draft(request: Any, slug: str, assistant_id: UUID, body: DraftIn) -> Any:
    """`revision`: of the draft as you have seen it, 0 when there was none. 409 when somebody has changed it since."""
    saved = services.save_draft(access=request.auth, assistant_id=assistant_id, text=body.text, revision=body.revision)
    return _version(saved)


@router.delete("/t/{slug}/prompts/{uuid:assistant_id}/draft", response=Done, auth=needs(EDIT))
def discard_draft(request: Any, slug: str, assistant_id: UUID, revision: int) -> Any:
    services.discard_draft(access=request.auth, assistant_id=assistant_id, revision=revision)
    return {}


@router.post("/t/{slug}/prompts/{uuid:assistant_id}/publish", response=VersionOut, auth=needs(PUBLISH))
def publish(request: Any, slug: str, assistant_id: UUID, body: PublishIn) -> Any:
    version = services.publish_draft(
        access=request.auth, assistant_id=assistant_id, note=body.note, revision=body.revision
    )
    return _version(version)


@router.get("/t/{slug}/prompts/{uuid:assistant_id}/versions", response=Versions, auth=needs(READ))
def list_versions(request: Any, slug: str, assistant_id: UUID, before: int | None = None) -> Any:
    """The newest first; `before` is the `next` of the page before this."""
    found = selectors.versions(selectors.assistant(request.auth.tenant, assistant_id))
    if before is not None:
        found = found.filter(number__lt=max(0, min(before, 2**31 - 1)))
    items = list(found[: PAGE + 1])
    more = len(items) > PAGE
    items = items[:PAGE]
    uses = use_of(request.auth.tenant, [one.pk for one in items])
    shown = [_version(one, uses.get(one.pk, Use())) for one in items]
    return {"items": shown, "next": items[-1].number if more else None}


@router.get("/t/{slug}/prompts/versions/{uuid:version_id}", response=VersionItem, auth=needs(READ))
def get_version(request: Any, slug: str, version_id: UUID) -> Any:
    found = selectors.version(request.auth.tenant, version_id)
    return _version(found, use_of(request.auth.tenant, [found.pk]).get(found.pk, Use()))


@router.post("/t/{slug}/prompts/versions/{uuid:version_id}/roll-back", response=VersionOut, auth=needs(PUBLISH))
def roll_back(request: Any, slug: str, version_id: UUID, body: RollBackIn) -> Any:
    return _version(services.roll_back(access=request.auth, version_id=version_id, note=body.note))


@router.get("/t/{slug}/prompts/versions/{uuid:version_id}/diff/{uuid:other_id}", response=DiffOut, auth=needs(READ))
def diff_versions(request: Any, slug: str, version_id: UUID, other_id: UUID) -> Any:
    """From the first to the second; either may be a draft."""
    old = selectors.version(request.auth.tenant, version_id)
    return asdict(diff(old.text, selectors.version(request.auth.tenant, other_id).text))
