"""What is in an export: of a team, and of one person. Runs in the scope of whose rows it reads.

Rows come in order of their ids, a page at a time, their fields named one by one. No secret is among them: neither
hashes of keys nor salts, neither the nonces of invitations nor the secret of a sign-in service.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import models

from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry, BreakGlass
from chatapp.batches.models import Batch
from chatapp.chat.models import Conversation, Generation, Message
from chatapp.data.archive import Archive
from chatapp.data.retention import retention_of
from chatapp.feedback.models import Feedback
from chatapp.files.contents import CHUNK
from chatapp.files.models import PREFIX, Attachment, StoredFile
from chatapp.files.services import open_file
from chatapp.limits.models import ALL, LOWER, LowerLimits, Meter, TenantLimits
from chatapp.limits.selectors import limits_of_team
from chatapp.prompts.models import PromptVersion, SystemPrompt
from chatapp.responses.models import StoredResponse
from chatapp.shares.models import Share
from chatapp.tenants.models import ApiKey, DomainClaim, Invitation, Membership, SignIn, Tenant
from chatapp.usage.models import UsageDay
from chatapp.webhooks.models import WebhookDelivery, WebhookEndpoint

PAGE = 500

USAGE = (
    "id", "created_at", "ended_at", "team", "principal", "conversation", "model", "state", "finish_reason",
    "prompt_tokens", "cached_tokens", "completion_tokens", "queue_s", "prefill_s", "decode_s", "error_code",
)  # fmt: skip
DAYS = (
    "at", "kind", "principal", "principal_name", "assistant_id", "assistant_name", "model", "requests", "finished",
    "cancelled", "refused", "failed", "prompt_tokens", "cached_tokens", "output_tokens", "queue_us", "prefill_us",
    "decode_us",
)  # fmt: skip
AUDIT = (
    "id", "at", "actor_kind", "actor_id", "actor_name", "action", "object_kind", "object_id", "object_name", "details",
    "address", "request_id",
)  # fmt: skip

# Named one by one, so that no secret of a tenant gets in by being added to its model.
TENANT_FIELDS = (
    "id", "slug", "name", "accent", "default_model", "allowed_models", "model_titles", "created_at",
)  # fmt: skip

TEAM_README = """\
Everything that {name} ({slug}) has in Octavo.

conversations.jsonl   one conversation a line: whose it is, title, tags, assistant, model, times, star, and where it
                      was imported from
messages.jsonl        one message a line; `parent` is the message that it follows, so edits and retries are branches
shares.jsonl          conversations that somebody lets the team read, a line each, as they were at that moment
feedback.jsonl        one rating of an answer a line: reasons, text, model, version, and the question and the answer
                      where the reader has included them; whose it is stands nowhere
responses.jsonl       what keys have asked of /v1/responses and not deleted, a line each: settings, input, output
files.jsonl           one file a line: whose it is, what it is for, and where in this archive it is; the files
                      themselves are in files/, as they came
attachments.jsonl     which message has which file, in which place
members.jsonl         who belongs to the team, with role
invitations.jsonl     who was invited, by whom, and what became of it
assistants.jsonl      one assistant a line; `published` is the version in prompts.jsonl that answers
prompts.jsonl         one version of a system prompt a line, drafts and published ones
keys.jsonl            API keys by name and first characters, what they may do, from where and how long; nobody has
                      the secrets, we do not either
limits.json           the plan, the limits that hold for the team, and which of them are its own and not the plan's
lower_limits.jsonl    what admins have set lower: for a person, for a key, or (neither) for each person
meters.jsonl          tokens of a month a line; `subject` is a person or a key, empty for the whole team
usage.csv             one answer a line: tokens, times, how it ended; no text
usage_days.csv        what these add up to by day (UTC), also of days whose answers are not kept any more
audit.csv             who did what, and from where
readings.jsonl        when an operator had leave to read chats, and why
batches.jsonl         one batch a line: its files, how it stands, how many requests; its files are files of their own
webhooks.jsonl        one webhook a line, without its secrets: where to, for which events, whether it is on
deliveries.jsonl      what was sent to webhooks within two weeks, with the answer's status
sign_in.json          second factors, the team's own sign-in service without its secret, and mail domains
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
conversations.jsonl   one conversation a line: in which team, title, tags, assistant, model, times, star, and where it
                      was imported from
messages.jsonl        one message a line; `parent` is the message that it follows, so edits and retries are branches
files.jsonl           one file a line, and where in this archive it is; the files themselves are in files/, as they came
attachments.jsonl     which message has which file, in which place
shares.jsonl          conversations that you let your teams read, a line each, as they were at that moment
feedback.jsonl        what you have said of answers, a line each
usage.csv             one answer a line: tokens, times, how it ended; no text
manifest.json         rows, bytes and SHA-256 of each of these files

Text is UTF-8. A .jsonl file has one JSON object a line; lines end with a line feed, and with nothing else. In .csv
files a quote stands before what a spreadsheet would take for a formula. Times are UTC.
"""


def count_team() -> int:
    tables = (
        Conversation, Message, Membership, Invitation, SystemPrompt, PromptVersion, ApiKey, LowerLimits, Meter,
        Generation, UsageDay, AuditEntry, BreakGlass, WebhookEndpoint, WebhookDelivery, Batch, StoredResponse,
        StoredFile, Attachment, Share, Feedback,
    )  # fmt: skip
    return sum(model.objects.count() for model in tables)


def write_team(archive: Archive, tenant: Tenant) -> None:
    archive.text("README.txt", TEAM_README.format(name=tenant.name, slug=tenant.slug))
    archive.lines("conversations.jsonl", map(_conversation, _pages(_conversations(Conversation.objects.all()))))
    archive.lines("messages.jsonl", map(_message, _pages(Message.objects.all())))
    archive.lines("shares.jsonl", map(_share, _pages(Share.objects.select_related("user", "tenant"))))
    archive.lines("feedback.jsonl", map(_feedback, _pages(_ratings(Feedback.objects.all()))))
    archive.lines("responses.jsonl", map(_response, _pages(StoredResponse.objects.select_related("generation"))))
    _write_files(archive, StoredFile.objects.all())
    archive.lines("members.jsonl", map(_member, _pages(Membership.objects.select_related("user"))))
    invitations = Invitation.objects.select_related("invited_by", "accepted_by")
    archive.lines("invitations.jsonl", map(_invitation, _pages(invitations)))
    archive.lines("assistants.jsonl", map(_assistant, _pages(SystemPrompt.objects.select_related("published"))))
    published = set(SystemPrompt.objects.exclude(published=None).values_list("published", flat=True))
    versions = PromptVersion.objects.select_related("prompt", "created_by")
    archive.lines("prompts.jsonl", ({**_version(row), "is_published": row.pk in published} for row in _pages(versions)))
    archive.lines("keys.jsonl", map(_key, _pages(ApiKey.objects.select_related("created_by"))))
    archive.document("limits.json", _limits(tenant))
    archive.lines("lower_limits.jsonl", map(_lower, _pages(LowerLimits.objects.select_related("user", "key"))))
    archive.lines("meters.jsonl", map(_meter, _pages(Meter.objects)))
    archive.table("usage.csv", USAGE, map(_usage, _pages(_generations(Generation.objects.all()))))
    archive.table("usage_days.csv", DAYS, _columns(UsageDay.objects.defer("first_token", "between_tokens"), DAYS))
    archive.table("audit.csv", AUDIT, _columns(AuditEntry.objects, AUDIT))
    archive.lines("readings.jsonl", map(_reading, _pages(BreakGlass.objects)))
    archive.lines("batches.jsonl", map(_batch, _pages(Batch.objects.select_related("key"))))
    archive.lines("webhooks.jsonl", map(_webhook, _pages(WebhookEndpoint.objects.select_related("created_by"))))
    archive.lines("deliveries.jsonl", map(_delivery, _pages(WebhookDelivery.objects)))
    archive.document("sign_in.json", _sign_in(tenant))
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
            "language": user.language,
            "joined": user.date_joined,
            "last_login": user.last_login,
            "teams": [{"team": row.tenant.slug, **_member(row)} for row in memberships],
        },
    )
    own = Conversation.objects.filter(user=user)
    archive.lines("conversations.jsonl", map(_conversation, _pages(_conversations(own))))
    archive.lines("messages.jsonl", map(_message, _pages(Message.objects.filter(conversation__user=user))))
    _write_files(archive, StoredFile.objects.filter(user=user))
    archive.lines("shares.jsonl", map(_share, _pages(Share.objects.filter(user=user).select_related("user", "tenant"))))
    archive.lines("feedback.jsonl", map(_feedback, _pages(_ratings(Feedback.objects.filter(user=user)))))
    generations = _generations(Generation.objects.filter(principal=f"user:{user.pk}"))
    archive.table("usage.csv", USAGE, map(_usage, _pages(generations)))
    archive.manifest({"account": user.email})


def _write_files(archive: Archive, files: models.QuerySet[StoredFile]) -> None:
    archive.lines("files.jsonl", map(_file, _pages(files.select_related("tenant", "user"))))
    archive.lines("attachments.jsonl", map(_attachment, _pages(Attachment.objects.filter(file__in=files))))
    for row in _pages(files):
        try:
            with open_file(row) as opened:
                archive.binary(_place(row), opened.chunks(CHUNK))
        except FileNotFoundError:  # deleted meanwhile
            continue


def _place(row: StoredFile) -> str:
    """In the archive: by its id, which no name can make into another folder, with an ending that programs know."""
    ending = row.name.rpartition(".")[2].lower()
    known = ending.isascii() and ending.isalnum() and len(ending) < 9
    return f"files/{row.public_id}{'.' + ending if known else ''}"


# --- rows ---------------------------------------------------------------------------------------------------------


def _pages(rows: models.QuerySet[Any] | models.Manager[Any]) -> Iterator[Any]:
    """In order of the ids, which are those of time. Each page is a query of its own: no cursor stays open."""
    ordered = rows.order_by("pk")
    last: Any = None
    while page := list((ordered if last is None else ordered.filter(pk__gt=last))[:PAGE]):
        yield from page
        last = page[-1].pk


def _columns(rows: models.QuerySet[Any] | models.Manager[Any], names: tuple[str, ...]) -> Iterator[list[Any]]:
    return ([getattr(row, name) for name in names] for row in _pages(rows))


def _conversations(rows: models.QuerySet[Conversation]) -> models.QuerySet[Conversation]:
    return rows.select_related("user", "key", "tenant", "assistant", "imported").prefetch_related("tags")


def _ratings(rows: models.QuerySet[Feedback]) -> models.QuerySet[Feedback]:
    return rows.select_related("tenant", "assistant", "version", "message")


def _generations(rows: models.QuerySet[Generation]) -> models.QuerySet[Generation]:
    return rows.select_related("tenant").defer("request")


def _conversation(row: Conversation) -> dict[str, Any]:
    return {
        "id": row.pk,
        "team": row.tenant.slug,
        "user": row.user.email if row.user else None,
        "key": str(row.key) if row.key else None,
        "title": row.title,
        "assistant": row.assistant.slug if row.assistant else None,
        "model": row.model,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "params": row.params,
        "tags": [tag.name for tag in row.tags.all()],
        "starred_at": row.starred_at,
        "archived_at": row.archived_at,
        "deleted_at": row.deleted_at,
        "imported": _imported(row),
    }


def _imported(row: Conversation) -> dict[str, Any] | None:
    found = getattr(row, "imported", None)
    return {"from": found.source, "at": found.at, "told": found.told} if found is not None else None


def _share(row: Share) -> dict[str, Any]:
    return {
        "id": row.pk,
        "team": row.tenant.slug,
        "user": row.user.email,
        "conversation": row.conversation_id,
        "title": row.title,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "messages": row.messages,
    }


def _feedback(row: Feedback) -> dict[str, Any]:
    """The message is named only where its text is included: a row of messages says whose it is."""
    return {
        "id": row.pk,
        "team": row.tenant.slug,
        "message": row.message_id if row.included else None,
        "rating": row.rating,
        "reasons": row.reasons,
        "comment": row.comment,
        "question": row.question,
        "answer": row.answer,
        "model": row.model,
        "assistant": row.assistant.name if row.assistant else None,
        "version": row.version.number if row.version else None,
        "created_at": row.created_at,
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


def _response(row: StoredResponse) -> dict[str, Any]:
    generation = row.generation
    return {
        "id": row.public_id,
        "principal": generation.principal,
        "previous": row.previous_id,
        "model": generation.model,
        "state": generation.state,
        "background": row.background,
        "created_at": row.created_at,
        "ended_at": generation.ended_at,
        "settings": row.settings,
        "input": row.input,
        "output": row.output,
    }


def _file(row: StoredFile) -> dict[str, Any]:
    return {
        "id": row.public_id,
        "team": row.tenant.slug,
        "user": row.user.email if row.user else None,
        "name": row.name,
        "purpose": row.purpose,
        "bytes": row.bytes,
        "sha256": row.sha256,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "place": _place(row),
    }


def _attachment(row: Attachment) -> dict[str, Any]:
    return {"message": row.message_id, "file": f"{PREFIX}{row.file_id.hex}", "position": row.position}


def _member(row: Membership) -> dict[str, Any]:
    return {
        "email": row.user.email,
        "name": row.user.name,
        "role": row.role,
        "since": row.created_at,
        "suspended_at": row.suspended_at,
    }


def _invitation(row: Invitation) -> dict[str, Any]:
    return {
        "id": row.pk,
        "email": row.email,
        "role": row.role,
        "invited_by": row.invited_by.email if row.invited_by else None,
        "inviter": row.inviter,
        "created_at": row.created_at,
        "sent_at": row.sent_at,
        "mailed_at": row.mailed_at,
        "expires_at": row.expires_at,
        "accepted_at": row.accepted_at,
        "accepted_by": row.accepted_by.email if row.accepted_by else None,
        "withdrawn_at": row.withdrawn_at,
    }


def _assistant(row: SystemPrompt) -> dict[str, Any]:
    return {
        "id": row.pk,
        "name": row.name,
        "slug": row.slug,
        "description": row.description,
        "order": row.order,
        "is_default": row.is_default,
        "archived_at": row.archived_at,
        "published": row.published_id,
        "published_number": row.published.number if row.published else None,
        "created_at": row.created_at,
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
        "allowed_origins": row.allowed_origins,
        "allowed_networks": row.allowed_networks,
        "created_by": row.created_by.email if row.created_by else None,
        "created_with": row.created_with_id,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "last_used_at": row.last_used_at,
        "last_used_address": row.last_used_address,
        "revoked_at": row.revoked_at,
        "replaces": row.replaces_id,
        "replaced_at": row.replaced_at,
    }


def _limits(tenant: Tenant) -> dict[str, Any]:
    held = limits_of_team(tenant).team  # a team that nobody has asked for yet gets its plan here
    row = TenantLimits.objects.select_related("plan").filter(tenant=tenant).first()
    return {
        "plan": row.plan.name if row else None,
        "limits": {name: getattr(held, name) for name in ALL},
        "overrides": {name: getattr(row, name) for name in ALL if getattr(row, name, None) is not None},
    }


def _lower(row: LowerLimits) -> dict[str, Any]:
    return {
        "user": row.user.email if row.user else None,
        "key": str(row.key) if row.key else None,
        **{name: getattr(row, name) for name in LOWER},
    }


def _meter(row: Meter) -> dict[str, Any]:
    return {"month": row.month, "subject": row.subject, "used": row.used, "reserved": row.reserved}


def _reading(row: BreakGlass) -> dict[str, Any]:
    return {
        "id": row.pk,
        "operator": row.operator_name,
        "reason": row.reason,
        "conversation": row.conversation_id,
        "opened_at": row.opened_at,
        "expires_at": row.expires_at,
        "closed_at": row.closed_at,
    }


def _batch(row: Batch) -> dict[str, Any]:
    return {
        "id": row.public_id,
        "key": str(row.key) if row.key else None,
        "endpoint": row.endpoint,
        "status": row.status,
        "metadata": row.metadata,
        "errors": row.errors,
        "input_file": row.input_file,
        "output_file": row.output_file,
        "error_file": row.error_file,
        "total": row.total,
        "completed": row.completed,
        "failed": row.failed,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
    }


def _webhook(row: WebhookEndpoint) -> dict[str, Any]:
    return {
        "id": row.pk,
        "url": row.url,
        "description": row.description,
        "events": row.events,
        "enabled": row.enabled,
        "disabled_because": row.disabled_because,
        "failing_since": row.failing_since,
        "missed": row.missed,
        "created_by": row.created_by.email if row.created_by else row.created_by_name,
        "created_at": row.created_at,
    }


def _delivery(row: WebhookDelivery) -> dict[str, Any]:
    return {
        "id": row.pk,
        "webhook": row.endpoint_id,
        "message": row.message_id,
        "payload": row.payload,
        "state": row.state,
        "attempts": row.attempts,
        "created_at": row.created_at,
        "attempted_at": row.attempted_at,
        "next_attempt_at": row.next_attempt_at,
        "response_status": row.response_status,
        "took_ms": row.took_ms,
        "error": row.error,
    }


def _sign_in(tenant: Tenant) -> dict[str, Any]:
    row = SignIn.objects.filter(tenant=tenant).first() or SignIn(tenant=tenant)
    return {
        "mfa": row.mfa,
        "enabled": row.enabled,
        "issuer": row.issuer,
        "client_id": row.client_id,
        "role": row.role,
        "domains": [
            {"domain": claim.domain, "created_at": claim.created_at, "confirmed_at": claim.confirmed_at}
            for claim in DomainClaim.objects.filter(tenant=tenant)
        ],
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
