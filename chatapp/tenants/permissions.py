"""The one table of who may do what in a tenant: roles of people, scopes of keys.

Pages, APIs and sockets ask `Access.require(permission)` and nothing else. tests/tenants/test_permissions.py holds the
table, so that a change of it is seen.
"""

from __future__ import annotations

from enum import StrEnum

from django.db import models
from django.utils.translation import gettext_lazy as _l


class Permission(StrEnum):
    CHAT = "chat"
    OWN_SYSTEM_MESSAGE = "chat.system"
    READ_DASHBOARD = "dashboard.read"
    READ_USAGE = "usage.read"
    READ_AUDIT = "audit.read"
    READ_MEMBERS = "members.read"
    MANAGE_MEMBERS = "members.manage"
    TRANSFER_OWNERSHIP = "ownership.transfer"
    READ_PROMPTS = "prompts.read"
    EDIT_PROMPTS = "prompts.edit"
    PUBLISH_PROMPTS = "prompts.publish"
    READ_KEYS = "keys.read"
    MANAGE_KEYS = "keys.manage"
    READ_LIMITS = "limits.read"
    MANAGE_LIMITS = "limits.manage"
    MANAGE_DATA = "data.manage"
    MANAGE_SETTINGS = "settings.manage"
    MANAGE_WEBHOOKS = "webhooks.manage"
    READ_FEEDBACK = "feedback.read"
    STOP_ANSWERS = "answers.stop"


class Role(models.TextChoices):
    OWNER = "owner", _l("Owner")
    ADMIN = "admin", _l("Admin")
    EDITOR = "editor", _l("Prompt editor")
    MEMBER = "member", _l("Member")
    AUDITOR = "auditor", _l("Auditor")


class KeyScope(models.TextChoices):
    CHAT = "chat", _l("Chat")
    SYSTEM = "system", _l("Own system message")
    USAGE = "usage", _l("Read usage")
    ADMIN = "admin", _l("Administer the team")


P = Permission
_READ = {P.READ_DASHBOARD, P.READ_USAGE, P.READ_MEMBERS, P.READ_PROMPTS, P.READ_KEYS, P.READ_LIMITS}
_PROMPTS = {P.READ_PROMPTS, P.EDIT_PROMPTS, P.PUBLISH_PROMPTS}
_ADMIN = {
    P.CHAT, *_READ, *_PROMPTS, P.READ_AUDIT, P.MANAGE_MEMBERS, P.MANAGE_KEYS, P.MANAGE_LIMITS, P.MANAGE_SETTINGS,
    P.MANAGE_WEBHOOKS, P.READ_FEEDBACK, P.STOP_ANSWERS,
}  # fmt: skip

OF_ROLE: dict[Role, frozenset[Permission]] = {
    Role.OWNER: frozenset({*_ADMIN, P.MANAGE_DATA, P.TRANSFER_OWNERSHIP}),
    Role.ADMIN: frozenset(_ADMIN),
    Role.EDITOR: frozenset({P.CHAT, *_PROMPTS}),
    Role.MEMBER: frozenset({P.CHAT}),
    # Reads what there is to audit, and no chats.
    Role.AUDITOR: frozenset({*_READ, P.READ_AUDIT}),
}

OF_SCOPE: dict[KeyScope, frozenset[Permission]] = {
    KeyScope.CHAT: frozenset({P.CHAT}),
    KeyScope.SYSTEM: frozenset({P.OWN_SYSTEM_MESSAGE}),
    KeyScope.USAGE: frozenset({P.READ_USAGE, P.READ_DASHBOARD, P.READ_LIMITS}),
    # Neither chats, nor what readers have included of them in feedback, nor the owner's own: a key that leaks must not
    # take the team away.
    KeyScope.ADMIN: frozenset({*_ADMIN} - {P.CHAT, P.READ_FEEDBACK}),
}
