"""What can be in the audit log, in words. Whoever records a new action adds it here; a test holds the code to this.

An action that this version does not know, of a newer or older one, is still shown, by its own name.
"""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as _n

ACTIONS: dict[str, str] = {
    # people
    "member.added": _n("Added a member"),
    "member.joined": _n("Joined the team"),
    "member.left": _n("Left the team"),
    "member.role_changed": _n("Changed a member's role"),
    "member.changed": _n("Changed a membership"),
    "member.suspended": _n("Suspended a member"),
    "member.resumed": _n("Let a suspended member back in"),
    "member.removed": _n("Removed a member"),
    "member.account_deleted": _n("Left the team by deleting their account"),
    "ownership.transferred": _n("Transferred the ownership"),
    "invitation.created": _n("Invited somebody"),
    "invitation.resent": _n("Sent an invitation again"),
    "invitation.accepted": _n("Accepted an invitation"),
    "invitation.withdrawn": _n("Withdrew an invitation"),
    "invitation.expired": _n("Replaced an expired invitation"),
    # prompts
    "assistant.created": _n("Created an assistant"),
    "assistant.changed": _n("Changed an assistant"),
    "assistant.moved": _n("Moved an assistant"),
    "assistant.made_default": _n("Made an assistant the default"),
    "assistant.archived": _n("Archived an assistant"),
    "assistant.restored": _n("Restored an assistant"),
    "prompt.draft_begun": _n("Began a draft of a prompt"),
    "prompt.draft_discarded": _n("Discarded a draft of a prompt"),
    "prompt.published": _n("Published a prompt"),
    "prompt.rolled_back": _n("Rolled a prompt back"),
    "prompt.unpublished": _n("Took a prompt back"),
    # keys
    "key.created": _n("Created an API key"),
    "key.rotated": _n("Rotated an API key"),
    "key.changed": _n("Changed an API key"),
    "key.revoked": _n("Revoked an API key"),
    # answers
    "answer.stopped": _n("Stopped an answer"),
    # batches
    "batch.cancelled": _n("Cancelled a batch"),
    "batch.downloaded": _n("Downloaded the results of a batch"),
    # webhooks
    "webhook.created": _n("Added a webhook"),
    "webhook.changed": _n("Changed a webhook"),
    "webhook.rotated": _n("Rotated the secret of a webhook"),
    "webhook.deleted": _n("Deleted a webhook"),
    "webhook.tested": _n("Sent a test to a webhook"),
    "webhook.sent_again": _n("Sent an event to a webhook again"),
    "webhook.given_up": _n("Switched a webhook off that takes nothing"),
    # chats that move
    "share.created": _n("Shared a conversation with the team"),
    "share.revoked": _n("Revoked the link to a shared conversation"),
    "feedback.exported": _n("Exported the feedback"),
    # limits and usage
    "limits.changed": _n("Changed limits"),
    "limits.lowered": _n("Lowered a limit"),
    "limits.removed": _n("Removed a limit of the team's own"),
    "limits.warning": _n("Most of the budget is used"),
    "plan.created": _n("Created a plan"),
    "plan.changed": _n("Changed a plan"),
    "plan.made_default": _n("Made a plan the default"),
    "usage.exported": _n("Exported usage"),
    # the log itself, and what operators read
    "audit.exported": _n("Exported the audit log"),
    "break_glass.opened": _n("Opened this team's chats for reading"),
    "break_glass.read": _n("Read a conversation"),
    "break_glass.closed": _n("Stopped reading chats"),
    "break_glass.expired": _n("The time for reading chats ended"),
    # data
    "data.export_requested": _n("Asked for an export of all data"),
    "data.export_made": _n("Made an export of all data"),
    "data.export_downloaded": _n("Downloaded an export of all data"),
    "data.export_removed": _n("Removed an export of all data"),
    "data.retention_changed": _n("Changed how long data is kept"),
    "data.retention_applied": _n("Deleted what was kept long enough"),
    "account.deleted": _n("Deleted their own account"),
    "account.password_changed": _n("Changed their password"),
    "account.password_set": _n("Set a password"),
    "account.password_reset": _n("Chose a new password by a link"),
    "account.password_link_made": _n("Made somebody a link to choose a password"),
    "account.password_given": _n("Gave somebody a new password"),
    "account.changed": _n("Changed somebody's account"),
    "account.email_changed": _n("Changed their address"),
    "account.email_confirmed": _n("Confirmed their address"),
    "account.factor_added": _n("Added a second factor"),
    "account.factor_removed": _n("Removed a second factor"),
    "account.factor_reset": _n("Made new recovery codes"),
    "account.factor_failed": _n("Gave a wrong second factor"),
    "account.factors_removed": _n("Removed somebody's second factors"),
    "account.session_revoked": _n("Ended sessions"),
    "account.service_disconnected": _n("Removed the link with a sign-in service"),
    # the team and its sign-in
    "sign_in.mfa_changed": _n("Changed who needs a second factor"),
    "team.created": _n("Created the team"),
    "team.changed": _n("Changed the team"),
    "team.renamed": _n("Renamed the team"),
    "team.suspended": _n("Suspended the team"),
    "team.resumed": _n("Resumed the team"),
    "tenant.deletion_requested": _n("Asked for the team's deletion"),
    "tenant.deletion_undone": _n("Took the deletion back"),
    "tenant.deletion_begun": _n("Began the team's deletion before its time"),
    "tenant.deletion_failed": _n("Could not delete all of a team"),
    "tenant.deleted": _n("Deleted a team"),
    "sign_in.service_changed": _n("Changed the team's sign-in service"),
    "sign_in.service_removed": _n("Removed the team's sign-in service"),
    "sign_in.domain_claimed": _n("Claimed a domain"),
    "sign_in.domain_confirmed": _n("Confirmed a domain"),
    "sign_in.domain_withdrawn": _n("Withdrew the claim to a domain"),
    "sign_in.domain_taken_back": _n("Took a domain back"),
    # the platform
    "site.set_up": _n("Set Octavo up"),
    "site.changed": _n("Changed the site"),
    "site.restored": _n("Restored from a backup"),
    "site.backups_confirmed": _n("Confirmed that backups are made"),
    "worker.drained": _n("Let a worker take nothing new"),
    "worker.taken_back": _n("Let a worker take requests again"),
    "dead_letter.dropped": _n("Took a request that crashed engines off the list"),
}

# What an action's first word stands for, where it is not clear from itself.
TOPICS = {
    "account": _n("accounts"),
    "answer": _n("answers"),
    "assistant": _n("assistants"),
    "audit": _n("the audit log"),
    "batch": _n("batches"),
    "break_glass": _n("reading by operators"),
    "feedback": _n("feedback"),
    "invitation": _n("invitations"),
    "key": _n("API keys"),
    "member": _n("members"),
    "plan": _n("plans"),
    "prompt": _n("prompts"),
    "site": _n("the platform"),
    "share": _n("shared conversations"),
    "sign_in": _n("sign-in"),
    "team": _n("the team"),
    "tenant": _n("the team's deletion"),
    "webhook": _n("webhooks"),
    "worker": _n("workers"),
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
    """The actions whose words hold this, in English or in the reader's language."""
    wanted = text.casefold()
    return [action for action, words in ACTIONS.items() if wanted in words.casefold() or wanted in _(words).casefold()]
