"""What can be in the audit log, in words. Whoever records a new action adds it here; a test holds the code to this.

An action that this version does not know, of a newer or older one, is still shown, by its own name.
"""

from __future__ import annotations

ACTIONS: dict[str, str] = {
    # people
    "member.added": "Added a member",
    "member.joined": "Joined the team",
    "member.left": "Left the team",
    "member.role_changed": "Changed a member's role",
    "member.changed": "Changed a membership",
    "member.suspended": "Suspended a member",
    "member.resumed": "Let a suspended member back in",
    "member.removed": "Removed a member",
    "member.account_deleted": "Left the team by deleting their account",
    "ownership.transferred": "Transferred the ownership",
    "invitation.created": "Invited somebody",
    "invitation.resent": "Sent an invitation again",
    "invitation.accepted": "Accepted an invitation",
    "invitation.withdrawn": "Withdrew an invitation",
    "invitation.expired": "Replaced an expired invitation",
    # prompts
    "assistant.created": "Created an assistant",
    "assistant.changed": "Changed an assistant",
    "assistant.moved": "Moved an assistant",
    "assistant.made_default": "Made an assistant the default",
    "assistant.archived": "Archived an assistant",
    "assistant.restored": "Restored an assistant",
    "prompt.draft_begun": "Began a draft of a prompt",
    "prompt.draft_discarded": "Discarded a draft of a prompt",
    "prompt.published": "Published a prompt",
    "prompt.rolled_back": "Rolled a prompt back",
    "prompt.unpublished": "Took a prompt back",
    # keys
    "key.created": "Created an API key",
    "key.rotated": "Rotated an API key",
    "key.changed": "Changed an API key",
    "key.revoked": "Revoked an API key",
    # batches
    "batch.cancelled": "Cancelled a batch",
    "batch.downloaded": "Downloaded the results of a batch",
    # webhooks
    "webhook.created": "Added a webhook",
    "webhook.changed": "Changed a webhook",
    "webhook.rotated": "Rotated the secret of a webhook",
    "webhook.deleted": "Deleted a webhook",
    "webhook.tested": "Sent a test to a webhook",
    "webhook.sent_again": "Sent an event to a webhook again",
    "webhook.given_up": "Switched a webhook off that takes nothing",
    # limits and usage
    "limits.changed": "Changed limits",
    "limits.lowered": "Lowered a limit",
    "limits.removed": "Removed a limit of the team's own",
    "limits.warning": "Most of the budget is used",
    "plan.created": "Created a plan",
    "plan.changed": "Changed a plan",
    "plan.made_default": "Made a plan the default",
    "usage.exported": "Exported usage",
    # the log itself, and what operators read
    "audit.exported": "Exported the audit log",
    "break_glass.opened": "Opened this team's chats for reading",
    "break_glass.read": "Read a conversation",
    "break_glass.closed": "Stopped reading chats",
    "break_glass.expired": "The time for reading chats ended",
    # data
    "data.export_requested": "Asked for an export of all data",
    "data.export_made": "Made an export of all data",
    "data.export_downloaded": "Downloaded an export of all data",
    "data.export_removed": "Removed an export of all data",
    "data.retention_changed": "Changed how long data is kept",
    "data.retention_applied": "Deleted what was kept long enough",
    "account.deleted": "Deleted their own account",
    "account.password_changed": "Changed their password",
    "account.password_set": "Set a password",
    "account.password_reset": "Chose a new password by a link",
    "account.password_link_made": "Made somebody a link to choose a password",
    "account.password_given": "Gave somebody a new password",
    "account.changed": "Changed somebody's account",
    "account.email_changed": "Changed their address",
    "account.email_confirmed": "Confirmed their address",
    "account.factor_added": "Added a second factor",
    "account.factor_removed": "Removed a second factor",
    "account.factor_reset": "Made new recovery codes",
    "account.factor_failed": "Gave a wrong second factor",
    "account.factors_removed": "Removed somebody's second factors",
    "account.session_revoked": "Ended sessions",
    "account.service_disconnected": "Removed the link with a sign-in service",
    # the team and its sign-in
    "sign_in.mfa_changed": "Changed who needs a second factor",
    "team.created": "Created the team",
    "team.changed": "Changed the team",
    "team.renamed": "Renamed the team",
    "team.suspended": "Suspended the team",
    "team.resumed": "Resumed the team",
    "tenant.deletion_requested": "Asked for the team's deletion",
    "tenant.deletion_undone": "Took the deletion back",
    "tenant.deletion_begun": "Began the team's deletion before its time",
    "tenant.deletion_failed": "Could not delete all of a team",
    "tenant.deleted": "Deleted a team",
    "sign_in.service_changed": "Changed the team's sign-in service",
    "sign_in.service_removed": "Removed the team's sign-in service",
    "sign_in.domain_claimed": "Claimed a domain",
    "sign_in.domain_confirmed": "Confirmed a domain",
    "sign_in.domain_withdrawn": "Withdrew the claim to a domain",
    "sign_in.domain_taken_back": "Took a domain back",
    # the platform
    "site.set_up": "Set Octavo up",
    "site.changed": "Changed the site",
    "site.backups_confirmed": "Confirmed that backups are made",
}

# What an action's first word stands for, where it is not clear from itself.
TOPICS = {
    "account": "accounts",
    "assistant": "assistants",
    "audit": "the audit log",
    "batch": "batches",
    "break_glass": "reading by operators",
    "invitation": "invitations",
    "key": "API keys",
    "member": "members",
    "plan": "plans",
    "prompt": "prompts",
    "site": "the platform",
    "sign_in": "sign-in",
    "team": "the team",
    "tenant": "the team's deletion",
    "webhook": "webhooks",
}


def topics() -> list[tuple[str, str]]:
    """The first words of all actions, each with what people call it."""
    found = sorted({action.partition(".")[0] for action in ACTIONS})
    return [(topic, TOPICS.get(topic, topic.replace("_", " "))) for topic in found]


def title(action: str) -> str:
    """ "key.created" as "Created an API key"; an unknown "oven.pre_heated" as "Oven: pre heated"."""
    known = ACTIONS.get(action)
    if known is not None:
        return known
    topic, dot, what = action.replace("_", " ").partition(".")
    return f"{topic.capitalize()}: {what}" if dot else topic.capitalize()


def matching(text: str) -> list[str]:
    """The actions whose words hold this."""
    wanted = text.casefold()
    return [action for action, words in ACTIONS.items() if wanted in words.casefold()]
