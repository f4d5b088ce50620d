"""Who comes by a team's sign-in service: what has to hold before anybody is let in, and who that then is.

A service speaks for its team's confirmed domains. So it may say who has an address there, make that person a member,
and link it with an account whose own address there is confirmed: nothing more. In particular it opens no account
whose address it does not speak for, and no operator's.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from allauth.account.models import EmailAddress
from allauth.socialaccount.models import SocialAccount
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import models, transaction

from chatapp.accounts.models import User
from chatapp.accounts.text import one_line
from chatapp.audit.models import ActorKind
from chatapp.audit.services import Actor, record
from chatapp.errors import Forbidden
from chatapp.events import tell
from chatapp.ids import parse_id
from chatapp.scope import unscoped
from chatapp.tenants.members import joined
from chatapp.tenants.models import Membership
from chatapp.tenants.sign_in import DomainClaim, SignIn


class NotLetIn(Forbidden):
    """The service knows the person, and that is not enough; `message` says why."""

    code = "sign_in_refused"


@dataclass(frozen=True)
class Identity:
    """What a verified ID token says: `subject` is the person's own id at the service."""

    subject: str
    email: str
    email_verified: bool
    name: str


def domain_of(email: str) -> str:
    return email.rpartition("@")[2].lower()


@unscoped("sign-in")
def service_for(email: str) -> SignIn | None:
    """The service that speaks for an address, if there is one."""
    claim = DomainClaim.objects.filter(domain=domain_of(email), confirmed_at__isnull=False).first()
    if claim is None:
        return None
    return _open().filter(tenant=claim.tenant_id).first()


@unscoped("sign-in")
def service_by_id(service_id: UUID) -> SignIn | None:
    """An enabled service whose team holds a domain at all: of others nothing is ever fetched."""
    return _open().filter(pk=service_id, tenant__domain_claims__confirmed_at__isnull=False).distinct().first()


@unscoped("sign-in")
def service_names(ids: set[str]) -> dict[str, str]:
    """Team names by the ids of their services."""
    rows = [parse_id(text) for text in ids]
    return {str(row.pk): row.tenant.name for row in SignIn.objects.select_related("tenant").filter(pk__in=rows)}


def _open() -> models.QuerySet[SignIn]:
    return SignIn.objects.select_related("tenant").filter(enabled=True, tenant__suspended_at=None)


@transaction.atomic
def arrive(service: SignIn, identity: Identity) -> User:
    """The account of whom the service has sent, made or linked where that is right, and a member. Raises NotLetIn."""
    with unscoped("sign-in"):
        email = identity.email.strip().lower()
        _check(service, identity, email)
        user = _account(service, identity, email)
        membership, made = Membership.objects.get_or_create(
            tenant=service.tenant, user=user, defaults={"role": service.role}
        )
        if membership.suspended_at is not None:
            raise NotLetIn(f"Your membership in {service.tenant.name} is suspended. Ask an owner or admin.")
        if made:
            record(
                "member.joined",
                actor=Actor(ActorKind.USER, str(user.pk), user.email),
                tenant=service.tenant,
                on=membership,
                name=user.email,
                details={"role": service.role, "by": "sign-in service"},
            )
            tell(tenant_id=service.tenant_id, kind="member.joined", data=joined(membership, "sign_in"))
    return user


def _check(service: SignIn, identity: Identity, email: str) -> None:
    name = service.tenant.name
    try:
        validate_email(email)
    except ValidationError:
        raise NotLetIn(f"The sign-in service of {name} does not say which mail address you have.") from None
    if identity.email_verified is not True:
        raise NotLetIn(f"The sign-in service of {name} does not vouch for your mail address: it is not verified there.")
    confirmed = DomainClaim.objects.filter(tenant=service.tenant, confirmed_at__isnull=False)
    if not confirmed.filter(domain=domain_of(email)).exists():
        raise NotLetIn(f"{name} has no confirmed claim on {domain_of(email)}, so its service cannot speak for {email}.")


def _account(service: SignIn, identity: Identity, email: str) -> User:
    provider = str(service.pk)
    link = SocialAccount.objects.select_related("user").filter(provider=provider, uid=identity.subject).first()
    if link is not None and _has(link.user, email):
        return _usable(link.user)
    if link is not None:
        # The address is another one now, there or here: what the service says today is not about this account.
        link.delete()
    owner = _owner(email)
    if owner is None:
        owner = User.objects.create_user(email, None, name=one_line(identity.name)[:120])
        EmailAddress.objects.create(user=owner, email=email, verified=True, primary=True)
    user = _usable(owner)
    if SocialAccount.objects.filter(provider=provider, user=user).exists():
        raise NotLetIn(f"Somebody else at {service.tenant.name}'s service signs in as {email} already.")
    # No claims are kept beside the link: they would be a copy of personal data that nothing reads.
    SocialAccount.objects.create(provider=provider, uid=identity.subject, user=user, extra_data={})
    return user


def _has(user: User, email: str) -> bool:
    return EmailAddress.objects.filter(user=user, email__iexact=email, verified=True).exists()


def _owner(email: str) -> User | None:
    """The account whose confirmed address it is; None where no account has it at all."""
    confirmed = EmailAddress.objects.select_related("user").filter(email__iexact=email, verified=True).first()
    if confirmed is not None:
        return confirmed.user
    if User.objects.filter(email__iexact=email).exists() or EmailAddress.objects.filter(email__iexact=email).exists():
        raise NotLetIn(
            f"There is an account with {email} that has never confirmed this address. Log in with its password and "
            "confirm the address under Account; then this way is open."
        )
    return None


def _usable(user: User) -> User:
    if user.is_staff:
        raise NotLetIn("Operators of this Octavo log in with their password or a passkey, not through a team.")
    return user
