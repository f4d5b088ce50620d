"""What changes assistants and their prompts. Each is one transaction with its entry in the audit log.

Saving a draft writes no entry each time, as pages do so while somebody types: the log says when a draft was begun,
thrown away or published. Whoever changes a draft says which `revision` he has seen (0: that there was none), and gets a
Conflict when somebody else was faster: nobody overwrites what he has not seen.
"""

from __future__ import annotations

from typing import Any

import structlog
from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils import timezone
from django.utils.text import slugify
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as _n

from chatapp.accounts.models import User
from chatapp.audit.services import record
from chatapp.errors import BadInput, Conflict
from chatapp.prompts import selectors, tasks
from chatapp.prompts.measure import EXACT, measure
from chatapp.prompts.models import (
    LONGEST_DESCRIPTION,
    LONGEST_NAME,
    LONGEST_NOTE,
    LONGEST_SLUG,
    PromptVersion,
    SystemPrompt,
)
from chatapp.prompts.text import clean_line, clean_text, is_blank
from chatapp.streaming.connection import sync_redis
from chatapp.tenants.access import Access
from chatapp.tenants.models import Tenant
from chatapp.tenants.permissions import Permission

log = structlog.get_logger(__name__)

MOST_ASSISTANTS = 100
# A new text of so many bytes may be published while no engine says how long it is: it fits any model that is served.
FITS_UNMEASURED = 4000
NO_NAME = _n("Give the assistant a name.")
NO_NOTE = "Say in a few words why, for whoever reads the versions later."


# --- assistants ---------------------------------------------------------------------------------------------------


@transaction.atomic
def create_assistant(*, access: Access, name: str, description: str = "") -> SystemPrompt:
    """The team's first one is its default."""
    access.require(Permission.EDIT_PROMPTS)
    name = _free_name(access.tenant, name, None)
    if SystemPrompt.objects.filter(tenant=access.tenant, archived_at=None).count() >= MOST_ASSISTANTS:
        raise Conflict(
            _("Your team has %(most)s assistants already. Archive one first.") % {"most": MOST_ASSISTANTS},
            code="too_many",
        )
    description = clean_line(description, param="description", longest=LONGEST_DESCRIPTION)
    assistant = _new_assistant(access.tenant, name, description)
    _record("assistant.created", access, assistant)
    return assistant


@transaction.atomic
def change_assistant(
    *, access: Access, assistant_id: object, name: str | None = None, description: str | None = None,
    slug: str | None = None,
) -> SystemPrompt:  # fmt: skip
    """None leaves a field as it is."""
    access.require(Permission.EDIT_PROMPTS)
    assistant = _locked(access, assistant_id)
    before = {field: getattr(assistant, field) for field in ("name", "description", "slug")}
    if name is not None:
        assistant.name = _free_name(access.tenant, name, assistant)
    if description is not None:
        assistant.description = clean_line(description, param="description", longest=LONGEST_DESCRIPTION)
    if slug is not None and slug != assistant.slug:
        assistant.slug = _free_slug(access.tenant, slug)
    changed = {
        field: [old, getattr(assistant, field)] for field, old in before.items() if getattr(assistant, field) != old
    }
    if changed:
        assistant.save(update_fields=list(changed))
        _record("assistant.changed", access, assistant, **changed)
    return assistant


@transaction.atomic
def move_assistant(*, access: Access, assistant_id: object, up: bool) -> None:
    """One place up or down in the order that people choose from; the first stays the first."""
    access.require(Permission.EDIT_PROMPTS)
    assistant = _locked(access, assistant_id)
    listed = list(SystemPrompt.objects.select_for_update().filter(tenant=access.tenant, archived_at=None))
    if assistant not in listed:
        raise Conflict(_("An archived assistant has no place. Restore it first."), code="archived")
    place = listed.index(assistant)
    other = place - 1 if up else place + 1
    if not 0 <= other < len(listed):
        return
    listed[place], listed[other] = listed[other], listed[place]
    for order, one in enumerate(listed):
        SystemPrompt.objects.filter(pk=one.pk).update(order=order)
    _record("assistant.moved", access, assistant, place=[place + 1, other + 1])


@transaction.atomic
def make_default(*, access: Access, assistant_id: object) -> None:
    """New chats get it where nobody chooses."""
    access.require(Permission.PUBLISH_PROMPTS)
    assistant = _locked(access, assistant_id)
    if assistant.archived_at is not None:
        raise Conflict(_("An archived assistant cannot be the default. Restore it first."), code="archived")
    if assistant.published_id is None:
        raise Conflict(_("Publish its instructions first: they answer from then on."), code="not_published")
    if assistant.is_default:
        return
    SystemPrompt.objects.filter(tenant=access.tenant, is_default=True).update(is_default=False)
    SystemPrompt.objects.filter(pk=assistant.pk).update(is_default=True)
    _record("assistant.made_default", access, assistant)


@transaction.atomic
def archive_assistant(*, access: Access, assistant_id: object) -> None:
    """Nobody can choose it any more, and the engines let go of it. Its versions and its conversations stay; those are
    answered by the default assistant."""
    access.require(Permission.PUBLISH_PROMPTS)
    assistant = _locked(access, assistant_id)
    if assistant.archived_at is not None:
        return
    if assistant.is_default:
        raise Conflict(
            _("This is your team's default assistant. Make another one the default first."), code="is_default"
        )
    SystemPrompt.objects.filter(pk=assistant.pk).update(archived_at=timezone.now())
    _record("assistant.archived", access, assistant)
    _release(access.tenant, assistant)


@transaction.atomic
def restore_assistant(*, access: Access, assistant_id: object) -> None:
    access.require(Permission.PUBLISH_PROMPTS)
    assistant = _locked(access, assistant_id)
    if assistant.archived_at is None:
        return
    last = SystemPrompt.objects.filter(tenant=access.tenant).aggregate(last=Max("order"))["last"] or 0
    SystemPrompt.objects.filter(pk=assistant.pk).update(archived_at=None, order=last + 1)
    _record("assistant.restored", access, assistant)
    if assistant.published_id is not None:
        _warm(access.tenant, assistant.published_id)


# --- drafts and versions ------------------------------------------------------------------------------------------


@transaction.atomic
def save_draft(*, access: Access, assistant_id: object, text: str, revision: int) -> PromptVersion:
    """Keep the working draft. Raises Conflict (draft_changed) when somebody else has changed it since."""
    access.require(Permission.EDIT_PROMPTS)
    assistant = _locked(access, assistant_id)
    text = clean_text(text)
    draft = selectors.draft(assistant)
    _check_revision(draft, revision)
    if draft is None:
        try:
            with transaction.atomic():
                draft = PromptVersion.objects.create(
                    prompt=assistant, text=text, created_by=access.user, changed_by=access.user
                )
        except IntegrityError:
            _check_revision(selectors.draft(assistant), revision)
            raise
        _record("prompt.draft_begun", access, assistant)
        return draft
    if draft.text == text:
        return draft
    draft.text, draft.revision = text, draft.revision + 1
    draft.changed_by, draft.changed_at = access.user, timezone.now()
    draft.save(update_fields=["text", "revision", "changed_by", "changed_at"])
    return draft


@transaction.atomic
def discard_draft(*, access: Access, assistant_id: object, revision: int) -> None:
    """Throw the working draft away; none there is fine."""
    access.require(Permission.EDIT_PROMPTS)
    assistant = _locked(access, assistant_id)
    draft = selectors.draft(assistant)
    if draft is None:
        return
    _check_revision(draft, revision)
    draft.delete()
    _record("prompt.draft_discarded", access, assistant)


def publish_draft(*, access: Access, assistant_id: object, note: str, revision: int) -> PromptVersion:
    """The draft becomes the next version. New answers get it once an engine has it in memory, at most 10 s later.

    Raises BadInput for an empty draft, one without a change, and one that is too long for the model or may be, as no
    engine says; Conflict.
    """
    access.require(Permission.PUBLISH_PROMPTS)
    assistant = selectors.assistant(access.tenant, assistant_id)
    note = clean_line(note, param="note", longest=LONGEST_NOTE, needed=NO_NOTE)
    draft = selectors.draft(assistant)
    _check_revision(draft, revision)
    if draft is None:
        raise Conflict(_("There is no draft to publish. Write one first."), code="no_draft")
    tokens = _fitting(access.tenant, draft.text, new=True)  # asks an engine: not inside the transaction
    with transaction.atomic():
        assistant = _locked(access, assistant_id)
        _check_open(assistant)
        draft = selectors.draft(assistant)
        _check_revision(draft, revision)
        assert draft is not None
        if assistant.published is not None and assistant.published.text == draft.text:
            raise BadInput(_("The draft is the same as the published version."), code="unchanged", param="text")
        draft.number, draft.note, draft.tokens = _next_number(assistant), note, tokens
        draft.published_by, draft.published_at = access.user, timezone.now()
        draft.save()
        _put_in_force(assistant, draft)
        _record("prompt.published", access, assistant, version=draft.number, note=note, tokens=tokens)
    return draft


def roll_back(*, access: Access, version_id: object, note: str = "") -> PromptVersion:
    """Publish an older version's text again, as a new version that says so. A working draft stays as it is."""
    access.require(Permission.PUBLISH_PROMPTS)
    old = selectors.version(access.tenant, version_id)
    note = clean_line(note, param="note", longest=LONGEST_NOTE) or f"Back to version {old.number}"
    if old.is_draft:
        raise BadInput(_("This is a draft, which is published and not rolled back to."), param="version_id")
    tokens = _fitting(access.tenant, old.text, new=False)
    with transaction.atomic():
        assistant = _locked(access, old.prompt_id)
        _check_open(assistant)
        if assistant.published is not None and assistant.published.text == old.text:
            raise BadInput(_("This text is what is published already."), code="unchanged", param="version_id")
        now = timezone.now()
        version = PromptVersion.objects.create(
            prompt=assistant, number=_next_number(assistant), text=old.text, note=note, restores=old, tokens=tokens,
            created_by=access.user, changed_by=access.user, published_by=access.user, created_at=now, changed_at=now,
            published_at=now,
        )  # fmt: skip
        _put_in_force(assistant, version)
        _record("prompt.rolled_back", access, assistant, version=version.number, to=old.number, note=note)
    return version


@transaction.atomic
def unpublish(*, access: Access, assistant_id: object) -> None:
    """No instructions are in force any more. The versions stay, and each can be rolled back to."""
    access.require(Permission.PUBLISH_PROMPTS)
    assistant = _locked(access, assistant_id)
    if assistant.published is None:
        return
    SystemPrompt.objects.filter(pk=assistant.pk).update(published=None, former=None)
    _record("prompt.unpublished", access, assistant, version=assistant.published.number)
    _release(access.tenant, assistant)


@transaction.atomic
def publish(
    *, tenant: Tenant, text: str, name: str = "Assistant", note: str = "", by: User | None = None
) -> PromptVersion:
    """For set-up and commands: the next version of the tenant's assistant of this name, in force at once."""
    assistant = SystemPrompt.objects.filter(tenant=tenant, name=name).first() or _new_assistant(tenant, name, "")
    assistant = SystemPrompt.objects.select_for_update().get(pk=assistant.pk)
    now = timezone.now()
    version = PromptVersion.objects.create(
        prompt=assistant, number=_next_number(assistant), text=text, note=note, created_by=by, changed_by=by,
        published_by=by, created_at=now, changed_at=now, published_at=now,
    )  # fmt: skip
    SystemPrompt.objects.filter(pk=assistant.pk).update(published=version, former=None)
    _warm(tenant, version.pk)
    return version


# --- parts --------------------------------------------------------------------------------------------------------


def _locked(access: Access, assistant_id: object) -> SystemPrompt:
    """The asker's own, and nobody else changes it before this transaction ends. Raises NotFound."""
    found = selectors.assistant(access.tenant, assistant_id)
    # PostgreSQL cannot lock the nullable side of a join.
    SystemPrompt.objects.select_for_update().get(pk=found.pk)
    return selectors.assistant(access.tenant, assistant_id)


def _check_open(assistant: SystemPrompt) -> None:
    if assistant.archived_at is not None:
        raise Conflict(_("This assistant is archived. Restore it first."), code="archived")


def _check_revision(draft: PromptVersion | None, seen: int) -> None:
    now = draft.revision if draft is not None else 0
    if seen == now:
        return
    if draft is None:
        raise Conflict(
            _("This draft was published or thrown away meanwhile. Your text is still here: save it as a new draft."),
            code="draft_gone",
            param="revision",
        )
    who = draft.changed_by.get_short_name() if draft.changed_by is not None else _("A program")
    raise Conflict(
        _(
            "%(who)s has changed this draft meanwhile. Your text is still here: look at the difference, then save yours"
            " over it or take theirs."
        )
        % {"who": who},
        code="draft_changed",
        param="revision",
    )


def _fitting(tenant: Tenant, text: str, *, new: bool) -> int | None:
    """How many tokens a text takes that may be published; None when no engine can say. Raises BadInput.

    A text that was in force before needs no engine: whoever rolls back may have none that answers.
    """
    if is_blank(text):
        raise BadInput(
            _("The draft is empty. Write what the assistant should know and do."), code="empty", param="text"
        )
    size = measure(tenant, text)
    if size.too_long:
        raise BadInput(size.too_long, code="too_long", param="text")
    if new and size.state != EXACT and len(text.encode()) > FITS_UNMEASURED:
        raise BadInput(
            _(
                "No engine could say how long these instructions are, and every chat would be refused if they were too"
                " long. The draft is saved; publish it in a moment."
            ),
            code="not_measured",
            param="text",
        )
    return size.tokens or None


def _next_number(assistant: SystemPrompt) -> int:
    return (assistant.versions.aggregate(newest=Max("number"))["newest"] or 0) + 1


def _put_in_force(assistant: SystemPrompt, version: PromptVersion) -> None:
    SystemPrompt.objects.filter(pk=assistant.pk).update(published=version, former=selectors.in_force(assistant))
    _warm(assistant.tenant, version.pk)


def _warm(tenant: Tenant, version_id: Any) -> None:
    transaction.on_commit(lambda: _later(tasks.warm, str(tenant.pk), str(version_id)))


def _release(tenant: Tenant, assistant: SystemPrompt) -> None:
    ids = (str(tenant.pk), str(assistant.pk), str(assistant.published_id or ""))
    transaction.on_commit(lambda: _later(tasks.let_go, *ids))


def _later(task: Any, *ids: str) -> None:
    """Hand it to Celery. Without a broker the action is done nevertheless: the engines find out when they are asked."""
    try:
        sync_redis().ping()  # the broker is the same server, and Celery would try for six seconds to reach it
        task.apply_async(ids, retry=False)
    except Exception as error:  # kombu's and redis's errors have no common base but this
        log.warning("prompt.task_not_sent", task=task.name, error=type(error).__name__)


def _new_assistant(tenant: Tenant, name: str, description: str) -> SystemPrompt:
    Tenant.objects.select_for_update().get(pk=tenant.pk)  # two first ones would both be the default
    others = SystemPrompt.objects.filter(tenant=tenant)
    slug = base = slugify(name)[: LONGEST_SLUG - 10].strip("-_").replace("_", "-") or "assistant"
    number = 2
    while others.filter(slug=slug).exists():
        slug, number = f"{base}-{number}", number + 1
    last = others.aggregate(last=Max("order"))["last"]
    return SystemPrompt.objects.create(
        tenant=tenant, name=name, slug=slug, description=description, order=0 if last is None else last + 1,
        is_default=not others.filter(is_default=True).exists(),
    )  # fmt: skip


def _free_name(tenant: Tenant, name: str, own: SystemPrompt | None) -> str:
    name = clean_line(name, param="name", longest=LONGEST_NAME, needed=_(NO_NAME))
    taken = SystemPrompt.objects.filter(tenant=tenant, name=name).exclude(pk=own.pk if own else None).first()
    if taken is not None:
        if taken.archived_at is not None:
            text = _("There is an assistant of this name already, which is archived. Choose another one.")
        else:
            text = _("There is an assistant of this name already. Choose another one.")
        raise BadInput(text, param="name")
    return name


def _free_slug(tenant: Tenant, slug: str) -> str:
    slug = clean_line(slug, param="slug", longest=LONGEST_SLUG, needed=_("Give the assistant a name for programs."))
    field = SystemPrompt._meta.get_field("slug")
    try:
        field.run_validators(slug)
    except Exception:
        raise BadInput(_("Use a-z, 0-9 and inner hyphens."), param="slug") from None
    if SystemPrompt.objects.filter(tenant=tenant, slug=slug).exists():
        raise BadInput(_("Another assistant of your team is called so by programs. Choose another one."), param="slug")
    return slug


def _record(action: str, access: Access, assistant: SystemPrompt, **details: Any) -> None:
    record(action, actor=access.actor, tenant=access.tenant, on=assistant, name=assistant.name, details=details)
