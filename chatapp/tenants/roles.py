"""What the roles may do, in words for the people who choose one: made from the permission table, so it is true."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as _n

from chatapp.tenants.permissions import OF_ROLE, Permission, Role

P = Permission
# Read after "may", or by itself: one phrase a permission, a more general one named instead of those that it covers.
WORDS: dict[Permission, str] = {
    P.CHAT: _n("chat with the assistant"),
    P.OWN_SYSTEM_MESSAGE: _n("replace the team's system prompt in a request"),
    P.READ_DASHBOARD: _n("see the overview"),
    P.READ_USAGE: _n("see what was used"),
    P.READ_AUDIT: _n("read the audit log"),
    P.READ_MEMBERS: _n("see who belongs to the team"),
    P.MANAGE_MEMBERS: _n("invite, suspend and remove people and change their roles, but for owners"),
    P.TRANSFER_OWNERSHIP: _n("make, change and remove owners, and hand the team over"),
    P.READ_PROMPTS: _n("read system prompts"),
    P.EDIT_PROMPTS: _n("edit system prompts"),
    P.PUBLISH_PROMPTS: _n("publish system prompts and roll them back"),
    P.READ_KEYS: _n("see which API keys there are"),
    P.MANAGE_KEYS: _n("make and revoke API keys"),
    P.READ_LIMITS: _n("see limits"),
    P.MANAGE_LIMITS: _n("set limits for keys and people"),
    P.MANAGE_DATA: _n("export and delete the team's data"),
    P.MANAGE_SETTINGS: _n("change the team's name and colour"),
    P.MANAGE_WEBHOOKS: _n("set up webhooks, which tell programs what happens"),
    P.READ_FEEDBACK: _n("read how answers were rated, and the chats that readers have included there"),
    P.STOP_ANSWERS: _n("stop answers that are under way, whoever asked"),
}
COVERED = {
    P.MANAGE_MEMBERS: {P.READ_MEMBERS},
    P.EDIT_PROMPTS: {P.READ_PROMPTS},
    P.MANAGE_KEYS: {P.READ_KEYS},
    P.MANAGE_LIMITS: {P.READ_LIMITS},
}

WITH_ARTICLE: dict[Role, str] = {
    Role.OWNER: _n("an owner"),
    Role.ADMIN: _n("an admin"),
    Role.EDITOR: _n("a prompt editor"),
    Role.MEMBER: _n("a member"),
    Role.AUDITOR: _n("an auditor"),
}


@dataclass(frozen=True)
class Description:
    role: Role
    name: str
    may: str
    chats: bool


def describe(role: Role) -> Description:
    """All that an admin may. Also: …; what the next lower roles may is not said again."""
    given = OF_ROLE[role]
    lower = [other for other in Role if OF_ROLE[other] < given]
    next_lower = [one for one in lower if not any(OF_ROLE[one] < OF_ROLE[other] for other in lower)]
    known = frozenset[Permission]().union(*(OF_ROLE[other] for other in next_lower))
    hidden = frozenset[Permission]().union(*(COVERED.get(permission, set()) for permission in given))
    phrases = [_(WORDS[p]) for p in Permission if p in given and p not in known and p not in hidden]
    sentences = []
    names = [_(WITH_ARTICLE[other]) for other in next_lower]
    if len(names) == 1:
        sentences.append(_("All that %(role)s may.") % {"role": names[0]})
    elif names:
        sentences.append(
            _("All that %(first)s and %(last)s may.") % {"first": _(", ").join(names[:-1]), "last": names[-1]}
        )
    if phrases:
        listed = "; ".join(phrases)
        sentences.append(_("Also: %(list)s.") % {"list": listed} if next_lower else f"{listed[0].upper()}{listed[1:]}.")
    if Permission.CHAT not in given:
        sentences.append(_("Reads no chats, and has none."))
    return Description(role, str(role.label), " ".join(sentences), Permission.CHAT in given)


def descriptions() -> list[Description]:
    return [describe(role) for role in Role]
