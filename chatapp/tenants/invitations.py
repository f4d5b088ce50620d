"""Inviting people to a tenant, and what the invited do with their link.

A link is signed and carries an invitation's id and nonce. It works once, for one address, for 72 hours, and until it is
withdrawn or sent anew. An account is made for the invited address only; it is not open to anybody else.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from allauth.account.models import EmailAddress
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.signing import BadSignature, Signer
from django.db import transaction
from django.db.models.functions import Lower
from django.utils import timezone
from django.utils.crypto import constant_time_compare
from django.utils.translation import gettext as _

from chatapp.accounts.models import User
from chatapp.audit.models import ActorKind
from chatapp.audit.services import Actor, record
from chatapp.errors import BadInput, Conflict, Forbidden, NotFound, Refusal, TooMany
from chatapp.events import tell
from chatapp.ids import parse_id
from chatapp.languages import inside
from chatapp.scope import tenant_scope, unscoped
from chatapp.site.selectors import mail_is_set_up
from chatapp.tenants.access import Access
from chatapp.tenants.addresses import Address, clean_name, normalised
from chatapp.tenants.members import OWNERS_ONLY, joined, lock, parse_role
from chatapp.tenants.models import Invitation, Membership, Tenant, new_nonce
from chatapp.tenants.permissions import Permission, Role

log = structlog.get_logger(__name__)

VALID_FOR = timedelta(hours=72)
MOST_AT_ONCE = 50
# Every open one is mail that a team sends to strangers.
MOST_OPEN = 1000
RESEND_EVERY = timedelta(minutes=1)
NONCE_LENGTH = 32


class LinkState:
    """Why a link does not open an invitation; templates/tenant/invitation_over.html has words for each."""

    BAD = "bad"
    EXPIRED = "expired"
    USED = "used"
    WITHDRAWN = "withdrawn"
    REPLACED = "replaced"
    CLOSED = "closed"


class LinkOver(Refusal):
    """The link leads nowhere (any more). `code` is a LinkState; `tenant` is known where the link was once good."""

    status = 410

    def __init__(self, state: str, tenant: Tenant | None = None) -> None:
        super().__init__("This invitation does not work any more.", code=state)
        self.status = 404 if state == LinkState.BAD else 410
        self.tenant = tenant


@dataclass(frozen=True)
class Invited:
    """What became of one address: "invited", "open" (invited before), "member", "suspended", or "invalid"."""

    email: str
    outcome: str
    message: str
    invitation: Invitation | None = None


# --- by those who manage the team -------------------------------------------------------------------------------------


@transaction.atomic
def invite(*, access: Access, addresses: Sequence[Address], role: str) -> list[Invited]:
    """Each address on its own: what can be invited is, and the others say why not."""
    access.require(Permission.MANAGE_MEMBERS)
    wanted = parse_role(access, role)
    if not addresses:
        raise BadInput(_("Write at least one email address."), code="empty", param="emails")
    if len(addresses) > MOST_AT_ONCE:
        raise BadInput(
            _("These are %(n)s addresses; at most %(most)s can be invited at once.")
            % {"n": len(addresses), "most": MOST_AT_ONCE},
            code="too_many",
            param="emails",
        )
    tenant = lock(access)
    now = timezone.now()
    usable = [address.email for address in addresses if not address.problem]
    waiting = Invitation.objects.filter(accepted_at=None, withdrawn_at=None)
    if waiting.filter(expires_at__gt=now).count() + len(usable) > MOST_OPEN:
        raise BadInput(
            _("A team has at most %(most)s open invitations. Withdraw those that nobody needs.") % {"most": MOST_OPEN},
            code="too_many",
            param="emails",
        )
    members = _members_at(tenant, usable)
    former = {invitation.email: invitation for invitation in waiting.filter(email__in=usable)}
    return [_invite(access, address, wanted, members, former, now + VALID_FOR) for address in addresses]


def _members_at(tenant: Tenant, emails: list[str]) -> dict[str, Membership]:
    """Who of the team has one of these addresses, as the account's own or as a further one that is proved."""
    rows = Membership.objects.select_related("user").filter(tenant=tenant)
    own = {m.user.email.lower(): m for m in rows.alias(own=Lower("user__email")).filter(own__in=emails)}
    proved = dict(EmailAddress.objects.filter(email__in=emails, verified=True).values_list("user_id", "email"))
    return {proved[m.user_id].lower(): m for m in rows.filter(user__in=proved)} | own


def _invite(
    access: Access,
    address: Address,
    role: Role,
    members: dict[str, Membership],
    waiting: dict[str, Invitation],
    expires_at: datetime,
) -> Invited:
    email = address.email
    if address.problem:
        return Invited(email, "invalid", address.problem)
    member = members.get(email)
    if member is not None and member.suspended_at is not None:
        return Invited(email, "suspended", _("Is suspended. Resume them under Members instead."))
    if member is not None:
        return Invited(
            email,
            "member",
            _("Belongs to the team already, as %(role)s.") % {"role": inside(str(Role(member.role).label))},
        )
    former = waiting.get(email)
    if former is not None and not former.expired:
        return Invited(email, "open", _("Was invited before, and has not answered yet."), former)
    if former is not None:
        _end(former, access, "invitation.expired")
    made = Invitation.objects.create(
        tenant=access.tenant,
        email=email,
        role=role,
        invited_by=access.user,
        inviter=(access.user.get_full_name() if access.user else access.actor.name)[:254],
        expires_at=expires_at,
    )
    _record("invitation.created", access.actor, made, {"role": [None, role.value]})
    _mail_after_commit(made)
    return Invited(email, "invited", _("Invited."), made)


@transaction.atomic
def resend(*, access: Access, invitation_id: object) -> Invitation:
    """A new link for 72 hours more; the former one ends. Expired ones come to life again."""
    invitation = _managed(access, invitation_id)
    now = timezone.now()
    if mail_is_set_up() and now - invitation.sent_at < RESEND_EVERY:
        wait = int((RESEND_EVERY - (now - invitation.sent_at)).total_seconds()) + 1
        raise TooMany(
            _("This was sent a moment ago. Try again in %(wait)s s.") % {"wait": wait},
            code="too_soon",
            retry_after_s=wait,
        )
    invitation.nonce = new_nonce()
    invitation.sent_at, invitation.expires_at, invitation.mailed_at = now, now + VALID_FOR, None
    invitation.save(update_fields=["nonce", "sent_at", "expires_at", "mailed_at"])
    _record("invitation.resent", access.actor, invitation, {})
    _mail_after_commit(invitation)
    return invitation


@transaction.atomic
def withdraw(*, access: Access, invitation_id: object) -> None:
    invitation = _managed(access, invitation_id)
    _end(invitation, access, "invitation.withdrawn")


def may_hand_over(access: Access, invitation: Invitation) -> bool:
    """Whether the asker is shown the link: where no mail is sent, and to those only who may invite to that role.

    Where mail is sent the link proves the address, so nobody but its reader gets it.
    """
    return (
        not mail_is_set_up()
        and not invitation.expired
        and access.may(Permission.MANAGE_MEMBERS)
        and (invitation.role != Role.OWNER or access.may(Permission.TRANSFER_OWNERSHIP))
    )


def _end(invitation: Invitation, access: Access, action: str) -> None:
    invitation.withdrawn_at = timezone.now()
    invitation.save(update_fields=["withdrawn_at"])
    _record(action, access.actor, invitation, {"role": [invitation.role, None]})


def _managed(access: Access, invitation_id: object) -> Invitation:
    access.require(Permission.MANAGE_MEMBERS)
    lock(access)
    found = Invitation.objects.filter(pk=parse_id(invitation_id)).first()
    if found is None:
        raise NotFound(_("There is no such invitation."), param="invitation_id")
    if found.role == Role.OWNER and not access.may(Permission.TRANSFER_OWNERSHIP):
        raise Forbidden(OWNERS_ONLY)
    if found.accepted_at is not None:
        raise Conflict(_("%(email)s has accepted this invitation.") % {"email": found.email}, code="used")
    if found.withdrawn_at is not None:
        raise Conflict(_("This invitation was withdrawn. Invite them anew."), code="withdrawn")
    return found


# --- by whoever holds the link ----------------------------------------------------------------------------------------


def _signer() -> Signer:
    return Signer(salt="octavo.invitation", sep=".")


def token(invitation: Invitation) -> str:
    return _signer().sign(invitation.pk.hex + invitation.nonce)


def path(invitation: Invitation) -> str:
    return f"/invitations/{token(invitation)}"


@unscoped("invitations")
def open_link(text: str, *, locked: bool = False) -> Invitation:
    """The open invitation that a link's token names, with its tenant. Raises LinkOver."""
    try:
        named = _signer().unsign(text)
    except BadSignature:
        raise LinkOver(LinkState.BAD) from None
    rows = Invitation.objects.select_related("tenant")
    if locked:
        rows = rows.select_for_update(of=("self",))
    invitation = rows.filter(pk=parse_id(named[:-NONCE_LENGTH])).first()
    if invitation is None:
        raise LinkOver(LinkState.BAD)
    tenant = invitation.tenant
    if tenant.suspended_at is not None:
        raise LinkOver(LinkState.CLOSED)
    if not constant_time_compare(named[-NONCE_LENGTH:], invitation.nonce):
        raise LinkOver(LinkState.REPLACED, tenant)
    if invitation.accepted_at is not None:
        raise LinkOver(LinkState.USED, tenant)
    if invitation.withdrawn_at is not None:
        raise LinkOver(LinkState.WITHDRAWN, tenant)
    if invitation.expired:
        raise LinkOver(LinkState.EXPIRED, tenant)
    return invitation


def account_of(invitation: Invitation) -> User | None:
    """The account that has the invited address as its own, or as a further one that it has proved to be its own."""
    found = User.objects.filter(email__iexact=invitation.email).first()
    if found is not None:
        return found
    proved = EmailAddress.objects.select_related("user").filter(email__iexact=invitation.email, verified=True).first()
    return proved.user if proved is not None else None


def accept(*, token: str, user: User) -> Tenant:
    """The user joins. Raises LinkOver; Forbidden for another's invitation; Conflict for whoever is suspended there."""
    with unscoped("invitations"), transaction.atomic():
        invitation = _locked(token)
        if account_of(invitation) != user:
            raise Forbidden(
                _("This invitation is for %(email)s; you are logged in as %(email_2)s.")
                % {"email": invitation.email, "email_2": user.email}
            )
        _join(invitation, user)
    return invitation.tenant


def join_with_new_account(*, token: str, name: str, password: str) -> tuple[Tenant, User]:
    """An account for the invited address, and its membership. Raises BadInput with the field.

    The link proves the address where it left by mail; one that was handed over proves nothing, also where mail was set
    up meanwhile.
    """
    cleaned = clean_name(name)
    if not 0 < len(cleaned) <= 120:
        raise BadInput(_("Write your name in 1 to 120 characters."), param="name")
    with unscoped("invitations"), transaction.atomic():
        invitation = _locked(token)
        if account_of(invitation) is not None:
            raise Conflict(_("There is an account with this address already. Log in with it."), code="account_exists")
        user = User(email=normalised(invitation.email), name=cleaned)
        try:
            validate_password(password, user)
        except ValidationError as error:
            raise BadInput(" ".join(error.messages), param="password") from None
        user.set_password(password)
        user.save()
        proved = invitation.mailed_at is not None
        EmailAddress.objects.create(user=user, email=user.email, verified=proved, primary=True)
        _join(invitation, user)
    return invitation.tenant, user


def _locked(text: str) -> Invitation:
    """The tenant's row first, as everywhere, then the invitation's: two at once follow one another."""
    Tenant.objects.select_for_update(no_key=True).get(pk=open_link(text).tenant_id)
    return open_link(text, locked=True)


def _join(invitation: Invitation, user: User) -> None:
    tenant = invitation.tenant
    with tenant_scope(tenant):
        actor = Actor(ActorKind.USER, str(user.pk), user.email)
        member = Membership.objects.filter(tenant=tenant, user=user).first()
        if member is not None and member.suspended_at is not None:
            raise Conflict(
                _("Your access to %(name)s is suspended. An owner or admin can resume it.") % {"name": tenant.name}
            )
        invitation.accepted_at, invitation.accepted_by = timezone.now(), user
        invitation.save(update_fields=["accepted_at", "accepted_by"])
        if member is None:
            member = Membership.objects.create(tenant=tenant, user=user, role=invitation.role)
            details = {"role": [None, invitation.role], "invited_by": invitation.inviter}
            record("member.joined", actor=actor, tenant=tenant, on=member, name=user.email, details=details)
            tell(tenant_id=tenant.pk, kind="member.joined", data=joined(member, "invitation"))
        else:
            # An invitation neither raises nor lowers whoever is in already.
            _record("invitation.accepted", actor, invitation, {"role": [member.role, member.role]})


# --- both -------------------------------------------------------------------------------------------------------------


def _record(action: str, actor: Actor, invitation: Invitation, details: dict[str, object]) -> None:
    record(action, actor=actor, tenant=invitation.tenant, on=invitation, name=invitation.email, details=details)


def _mail_after_commit(invitation: Invitation) -> None:
    if mail_is_set_up():
        transaction.on_commit(functools.partial(_queue_mail, str(invitation.pk)))


def _queue_mail(invitation_id: str) -> None:
    from chatapp.tenants.tasks import send_invitation

    try:
        send_invitation.apply_async(args=[invitation_id], retry=False)
    except Exception as error:
        # The invitation stands; the list says that its mail has not left, and it can be sent again.
        log.warning("invitation.mail_not_queued", error=type(error).__name__)
