"""What is in an export: of a team, and of one person. Runs in the scope of whose rows it reads.

Rows come in order of their ids, a page at a time. No secret is among them: neither hashes of keys nor salts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import models

from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry
from chatapp.chat.models import Conversation, Generation, Message
from chatapp.data.archive import Archive
from chatapp.data.retention import retention_of
from chatapp.prompts.models import PromptVersion, SystemPrompt
from chatapp.tenants.models import ApiKey, Membership, Tenant

PAGE = 500

USAGE = (
    "id", "created_at", "ended_at", "team", "principal", "conversation", "model", "state", "finish_reason",
    "prompt_tokens", "cached_tokens", "completion_tokens", "queue_s", "prefill_s", "decode_s", "error_code",
)  # fmt: skip
AUDIT = (
    "id", "at", "actor_kind", "actor_id", "actor_name", "action", "object_kind", "object_id", "object_name", "details",
    "address", "request_id",
)  # fmt: skip

# Named one by one, so that no secret of a tenant gets in by being added to its model.
TENANT_FIELDS = (
    "id", "slug", "name", "accent", "default_model", "created_at",
)  # fmt: skip

TEAM_README = """\
Everything that {name} ({slug}) has in Octavo.

conversations.jsonl   one conversation a line: whose it is, title, times, star
messages.jsonl        one message a line; `parent` is the message that it follows, so edits and retries are branches
members.jsonl         who belongs to the team, with role
prompts.jsonl         one version of a system prompt a line, drafts and published ones
keys.jsonl            API keys by name and first characters; nobody has the secrets, we do not either
usage.csv             one answer a line: tokens, times, how it ended; no text
audit.csv             who did what, and from where
settings.json         the team's settings and how long it keeps chats
manifest.json         rows, bytes and SHA-256 of each of these files

Text is UTF-8. A .jsonl file has one JSON object a line; lines end with a line feed, and with nothing else. In .csv
files a quote stands before what a spreadsheet would take for a formula. Times are UTC.

It was read while the team went on working: an answer that was being written then may be cut, and has the status
"running". Conversations that somebody has deleted are in it as long as they can be asked back, with `deleted_at`.
"""

PERSON_README = """\
Everything that {email} has in Octavo, in all teams.

account.json          the account and the teams that it belongs to
conversations.jsonl   one conversation a line: in which team, title, times, star
messages.jsonl        one message a line; `parent` is the message that it follows, so edits and retries are branches
usage.csv             one answer a line: tokens, times, how it ended; no text
manifest.json         rows, bytes and SHA-256 of each of these files

Text is UTF-8. A .jsonl file has one JSON object a line; lines end with a line feed, and with nothing else. In .csv
files a quote stands before what a spreadsheet would take for a formula. Times are UTC.
"""


def count_team() -> int:
    tables = (Conversation, Message, Membership, PromptVersion, ApiKey, Generation, AuditEntry)
    return sum(model.objects.count() for model in tables)


def write_team(archive: Archive, tenant: Tenant) -> None:
    archive.text("README.txt", TEAM_README.format(name=tenant.name, slug=tenant.slug))
    archive.lines("conversations.jsonl", map(_conversation, _pages(_conversations(Conversation.objects.all()))))
    archive.lines("messages.jsonl", map(_message, _pages(Message.objects.all())))
    archive.lines("members.jsonl", map(_member, _pages(Membership.objects.select_related("user"))))
    published = set(SystemPrompt.objects.exclude(published=None).values_list("published", flat=True))
    versions = PromptVersion.objects.select_related("prompt", "created_by")
    archive.lines("prompts.jsonl", ({**_version(row), "is_published": row.pk in published} for row in _pages(versions)))
    archive.lines("keys.jsonl", map(_key, _pages(ApiKey.objects.select_related("created_by"))))
    archive.table("usage.csv", USAGE, map(_usage, _pages(_generations(Generation.objects.all()))))
    archive.table("audit.csv", AUDIT, ([getattr(row, name) for name in AUDIT] for row in _pages(AuditEntry.objects)))
    archive.document("settings.json", _settings(tenant))
    archive.manifest({"team": {"id": str(tenant.pk), "slug": tenant.slug, "name": tenant.name}})


def count_person(user: User) -> int:
    return (
        Conversation.objects.filter(user=user).count()
        + Message.objects.filter(conversation__user=user).count()
        + Generation.objects.filter(principal=f"user:{user.pk}").count()
    )


def write_person(archive: Archive, user: User) -> None:
    archive.text("README.txt", PERSON_README.format(email=user.email))
    memberships = Membership.objects.filter(user=user).select_related("tenant", "user")
    archive.document(
        "account.json",
        {
            "id": str(user.pk),
            "email": user.email,
            "name": user.name,
            "joined": user.date_joined,
            "last_login": user.last_login,
            "teams": [{"team": row.tenant.slug, **_member(row)} for row in memberships],
        },
    )
    own = Conversation.objects.filter(user=user)
    archive.lines("conversations.jsonl", map(_conversation, _pages(_conversations(own))))
    archive.lines("messages.jsonl", map(_message, _pages(Message.objects.filter(conversation__user=user))))
    generations = _generations(Generation.objects.filter(principal=f"user:{user.pk}"))
    archive.table("usage.csv", USAGE, map(_usage, _pages(generations)))
    archive.manifest({"account": user.email})


# --- rows ---------------------------------------------------------------------------------------------------------


def _pages(rows: models.QuerySet[Any] | models.Manager[Any]) -> Iterator[Any]:
    """In order of the ids, which are those of time. Each page is a query of its own: no cursor stays open."""
    ordered = rows.order_by("pk")
    last: Any = None
    while page := list((ordered if last is None else ordered.filter(pk__gt=last))[:PAGE]):
        yield from page
        last = page[-1].pk


def _conversations(rows: models.QuerySet[Conversation]) -> models.QuerySet[Conversation]:
    return rows.select_related("user", "key", "tenant")


def _generations(rows: models.QuerySet[Generation]) -> models.QuerySet[Generation]:
    return rows.select_related("tenant").defer("request")


def _conversation(row: Conversation) -> dict[str, Any]:
    return {
        "id": row.pk,
        "team": row.tenant.slug,
        "user": row.user.email if row.user else None,
        "key": str(row.key) if row.key else None,
        "title": row.title,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "starred_at": row.starred_at,
        "deleted_at": row.deleted_at,
    }


def _message(row: Message) -> dict[str, Any]:
    return {
        "id": row.pk,
        "conversation": row.conversation_id,
        "parent": row.parent_id,
        "role": row.role,
        "status": row.status,
        "created_at": row.created_at,
        "text": row.text,
    }


def _member(row: Membership) -> dict[str, Any]:
    return {
        "email": row.user.email,
        "name": row.user.name,
        "role": row.role,
        "since": row.created_at,
        "suspended_at": row.suspended_at,
    }


def _version(row: PromptVersion) -> dict[str, Any]:
    return {
        "id": row.pk,
        "prompt": row.prompt.name,
        "number": row.number,
        "note": row.note,
        "created_by": row.created_by.email if row.created_by else None,
        "created_at": row.created_at,
        "published_at": row.published_at,
        "text": row.text,
    }


def _key(row: ApiKey) -> dict[str, Any]:
    return {
        "id": row.pk,
        "name": row.name,
        "prefix": row.prefix,
        "scopes": sorted(row.scopes),
        "created_by": row.created_by.email if row.created_by else None,
        "created_at": row.created_at,
        "last_used_at": row.last_used_at,
        "revoked_at": row.revoked_at,
    }


def _usage(row: Generation) -> list[Any]:
    timing = [row.timing.get(name, "") for name in ("queue_s", "prefill_s", "decode_s")]
    return [
        row.pk, row.created_at, row.ended_at, row.tenant.slug, row.principal, row.conversation_id or "", row.model,
        row.state, row.finish_reason, row.prompt_tokens, row.cached_tokens, row.completion_tokens, *timing,
        row.error_code,
    ]  # fmt: skip


def _settings(tenant: Tenant) -> dict[str, Any]:
    rule = retention_of(tenant)
    return {
        "team": {name: getattr(tenant, name) for name in TENANT_FIELDS},
        "retention": {"days": rule.days, "keep_starred": rule.keep_starred, "usage_days": rule.usage_days},
    }
