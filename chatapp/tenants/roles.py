"""What the roles may do, in words for the people who choose one: made from the permission table, so it is true."""

from __future__ import annotations

from dataclasses import dataclass

from chatapp.tenants.permissions import OF_ROLE, Permission, Role

P = Permission
# Read after "may", or by itself: one phrase a permission, a more general one named instead of those that it covers.
WORDS: dict[Permission, str] = {
    P.CHAT: "chat with the assistant",
    P.OWN_SYSTEM_MESSAGE: "replace the team's system prompt in a request",
    P.READ_DASHBOARD: "see the overview",
    P.READ_USAGE: "see what was used",
    P.READ_AUDIT: "read the audit log",
    P.READ_MEMBERS: "see who belongs to the team",
    P.MANAGE_MEMBERS: "invite, suspend and remove people and change their roles, but for owners",
    P.TRANSFER_OWNERSHIP: "make, change and remove owners, and hand the team over",
    P.READ_PROMPTS: "read system prompts",
    P.EDIT_PROMPTS: "edit system prompts",
    P.PUBLISH_PROMPTS: "publish system prompts and roll them back",
    P.READ_KEYS: "see which API keys there are",
    P.MANAGE_KEYS: "make and revoke API keys",
    P.READ_LIMITS: "see limits",
    P.MANAGE_LIMITS: "set limits for keys and people",
    P.MANAGE_DATA: "export and delete the team's data",
    P.MANAGE_SETTINGS: "change the team's name and colour",
    P.MANAGE_WEBHOOKS: "set up webhooks, which tell programs what happens",
}
COVERED = {
    P.MANAGE_MEMBERS: {P.READ_MEMBERS},
    P.EDIT_PROMPTS: {P.READ_PROMPTS},
    P.MANAGE_KEYS: {P.READ_KEYS},
    P.MANAGE_LIMITS: {P.READ_LIMITS},
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
    phrases = [WORDS[p] for p in Permission if p in given and p not in known and p not in hidden]
    sentences = []
    if next_lower:
        sentences.append(f"All that {' and '.join(_one(other) for other in next_lower)} may.")
    if phrases:
        listed = "; ".join(phrases)
        sentences.append(f"Also: {listed}." if next_lower else f"{listed[0].upper()}{listed[1:]}.")
    if Permission.CHAT not in given:
        sentences.append("Reads no chats, and has none.")
    return Description(role, str(role.label), " ".join(sentences), Permission.CHAT in given)


def descriptions() -> list[Description]:
    return [describe(role) for role in Role]


def _one(role: Role) -> str:
    name = str(role.label).lower()
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
