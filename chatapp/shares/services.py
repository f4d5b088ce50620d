"""Sharing a conversation within its team, and taking that back. The team's log says both, and nothing of the text."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.audit.services import record
from chatapp.chat import selectors
from chatapp.chat.changes import changed
from chatapp.chat.models import UNFINISHED, Conversation, Message, MessageStatus
from chatapp.chat.trees import Said, Tree, branch, plant
from chatapp.cursors import keyset
from chatapp.errors import BadInput, Conflict, Forbidden, NotFound
from chatapp.ids import parse_id
from chatapp.moving.models import Source
from chatapp.moving.own_format import said_in, told_of, with_all
from chatapp.moving.services import mark
from chatapp.prompts import selectors as prompts
from chatapp.scope import tenant_scope
from chatapp.shares.models import Share
from chatapp.tenants.access import Access
from chatapp.tenants.models import Membership
from chatapp.tenants.permissions import Permission

# How long a link may be asked to hold.
LONGEST_DAYS = 365
MOST_MESSAGES = 2_000
MOST_CHARACTERS = 2_000_000
MOST_SHARES = 1_000


@transaction.atomic
def share(*, access: Access, conversation_id: object, leaf_id: object = None, days: int | None = None) -> Share:
    """A snapshot of one branch: the one that ends in `leaf_id`, else the newest. `days` None: until it is revoked.

    Raises NotFound, BadInput, Forbidden for a key, Conflict while the conversation is being answered.
    """
    access.require(Permission.CHAT)
    if access.user is None:
        raise Forbidden(_("Conversations are shared by the person whose they are; a key is none."))
    if days is not None and not 1 <= days <= LONGEST_DAYS:
        raise BadInput(_("A link holds for 1 to %(most)d days.") % {"most": LONGEST_DAYS}, param="days")
    found = selectors.conversation(access, conversation_id)
    if found.generations.filter(state__in=UNFINISHED).exists():
        raise Conflict(
            _("This conversation is being answered. Share it once the answer is there."), code="conversation_busy"
        )
    if Share.objects.filter(user=access.user).count() >= MOST_SHARES:
        raise BadInput(_("You share as many conversations as you can. Revoke some first."), code="too_many_shares")
    conversation = with_all(Conversation.objects.filter(pk=found.pk)).get()
    path = [one for one in branch(said_in(conversation), leaf_id) if one.text.strip()]
    if not path:
        raise BadInput(_("Nothing has been said in this conversation yet."), code="empty")
    if len(path) > MOST_MESSAGES or sum(len(one.text) for one in path) > MOST_CHARACTERS:
        raise BadInput(_("The conversation is too long to be shared: %(n)d messages.") % {"n": len(path)})
    made = Share.objects.create(
        tenant=access.tenant,
        conversation=found,
        user=access.user,
        title=found.title,
        messages=[_frozen(conversation, one) for one in path],
        expires_at=timezone.now() + timedelta(days=days) if days is not None else None,
    )
    _record("share.created", access, made, {"messages": len(path), "days": days})
    return made


@transaction.atomic
def revoke(*, access: Access, share_id: object) -> None:
    """Nobody can read it from now on, and its text is gone. Its owner may, and who manages the team's members.

    Raises NotFound, Forbidden.
    """
    found = Share.objects.select_related("user").filter(pk=parse_id(share_id), tenant=access.tenant).first()
    if found is None:
        raise NotFound(_("There is no such link."), param="share_id")
    if not may_revoke(access, found):
        # Who may read it may know that it is there; whoever could not does not learn it here.
        read(access, share_id)
        raise Forbidden(
            _("Only %(name)s, owners and admins can revoke this link.") % {"name": found.user.get_short_name()}
        )
    _record("share.revoked", access, found, {"by_owner": found.user_id == getattr(access.user, "pk", None)})
    found.delete()


def may_revoke(access: Access, found: Share) -> bool:
    own = access.user is not None and found.user_id == access.user.pk
    return own or access.may(Permission.MANAGE_MEMBERS)


def read(access: Access, share_id: object) -> Share:
    """What anybody of the team may read who has the link. Raises NotFound for one that has ended, as for none."""
    if access.user is None:
        access.require(Permission.CHAT)
    found = _living().filter(pk=parse_id(share_id), tenant=access.tenant).first()
    if found is None:
        raise NotFound(_("There is no such link, or it has ended."), param="share_id")
    return found


def own(access: Access, cursor: str = "", limit: int = 50) -> tuple[list[Share], str | None]:
    """The asker's own, newest first, without their text."""
    access.require(Permission.CHAT)
    rows = _living().filter(tenant=access.tenant, user=access.user).defer("messages")
    return keyset(rows, "-created_at", "-pk", cursor=cursor, limit=limit)


@transaction.atomic
def go_on(*, access: Access, share_id: object) -> Conversation:
    """The reader's own conversation with all that the snapshot has said. Raises NotFound, Forbidden."""
    access.require(Permission.CHAT)
    found = read(access, share_id)
    said = [
        Said(
            str(at),
            str(at - 1) if at else None,
            one["role"],
            one["text"],
            one["created_at"],
            one.get("status", MessageStatus.DONE),
        )
        for at, one in enumerate(found.said)
    ]
    assistant = found.conversation.assistant
    known = assistant if assistant is not None and assistant in prompts.choosable(access.tenant) else None
    conversation, ids = plant(access, Tree(title=found.title, messages=said, assistant=known))
    told = {
        str(ids[str(at)]): {name: one[name] for name in ("model", "files") if one.get(name)}
        for at, one in enumerate(found.messages)
    }
    mark(conversation, Source.SHARE, {key: known for key, known in told.items() if known})
    changed(conversation)  # open pages look at their lists
    return conversation


def end_of_membership(instance: Membership, **_kwargs: Any) -> None:
    """Whoever leaves the team takes back what they shared there, also should they come back."""
    with tenant_scope(instance.tenant_id):
        Share.objects.filter(user=instance.user_id).delete()


def _living() -> QuerySet[Share]:
    """Not ended: neither by time, nor with its conversation, nor while its owner is kept out of the team."""
    owners = Membership.objects.filter(user=OuterRef("user"), tenant=OuterRef("tenant"), suspended_at=None)
    fresh = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    rows = Share.objects.filter(fresh, Exists(owners), conversation__deleted_at=None)
    return rows.select_related("user", "conversation__assistant")


def _frozen(conversation: Conversation, message: Message) -> dict[str, Any]:
    told = told_of(conversation, message)
    frozen = {
        "role": message.role,
        "text": message.text,
        "created_at": message.created_at.isoformat(),
        "model": told.get("model", ""),
        "files": told.get("files", []),
    }
    if message.status != MessageStatus.DONE:
        frozen["status"] = message.status
    return frozen


def _record(action: str, access: Access, on: Share, details: dict[str, Any]) -> None:
    """The title tells of the chat, and stays out of the log."""
    name = f"a conversation of {on.user.email}"
    record(action, actor=access.actor, tenant=access.tenant, on=on, name=name, details=details)
