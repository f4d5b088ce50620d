"""What changes how a team's people sign in. Writes each change into the team's log, never a secret."""

from __future__ import annotations

import ipaddress
import re
from typing import Any
from urllib.parse import urlsplit

from allauth.socialaccount.models import SocialAccount
from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp.accounts.factors import has_second_factor
from chatapp.accounts.models import User
from chatapp.audit.services import operator, record
from chatapp.errors import BadInput, Conflict, NotFound
from chatapp.sealing import seal
from chatapp.tenants.access import Access
from chatapp.tenants.models import Tenant
from chatapp.tenants.permissions import Permission, Role
from chatapp.tenants.sign_in import DomainClaim, MfaRule, SignIn

CLIENT_SECRET = "client secret"  # noqa: S105  the name of a purpose
MOST_DOMAINS = 20
LONGEST_SECRET = 1000
LABEL = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
# Nobody's own: whoever has a mailbox there would speak for all others.
PUBLIC_MAIL = {
    "163.com", "aol.com", "fastmail.com", "gmail.com", "gmx.at", "gmx.ch", "gmx.com", "gmx.de", "gmx.net",
    "googlemail.com", "hotmail.com", "icloud.com", "live.com", "mail.com", "mail.ru", "me.com", "msn.com", "orange.fr",
    "outlook.com", "proton.me", "protonmail.com", "qq.com", "t-online.de", "web.de", "yahoo.com", "yandex.com",
    "yandex.ru", "zoho.com",
}  # fmt: skip


def _of(tenant: Tenant) -> SignIn:
    """The team's row, locked for this transaction where the database can."""
    SignIn.objects.get_or_create(tenant=tenant)
    return SignIn.objects.select_for_update().get(tenant=tenant)


@transaction.atomic
def require_second_factor(*, access: Access, rule: str) -> SignIn:
    access.require(Permission.MANAGE_SETTINGS)
    if rule not in MfaRule.values:
        raise BadInput(_("Choose one of %(choices)s.") % {"choices": ", ".join(MfaRule.values)}, param="mfa")
    role = access.role or ""
    if access.user is not None and MfaRule(rule).covers(role) and not has_second_factor(access.user):
        raise Conflict(_("Set up a second factor for yourself first; else you would lock yourself out."), param="mfa")
    row = _of(access.tenant)
    if row.mfa != rule:
        former, row.mfa = row.mfa, rule
        row.save(update_fields=["mfa"])
        record(
            "sign_in.mfa_changed",
            actor=access.actor,
            tenant=access.tenant,
            on=row,
            details={"mfa": [former, rule]},
        )
    return row


def clean_issuer(issuer: str) -> str:
    """An issuer as OpenID Connect spells it (Core, 2): https, no query, no fragment. Raises BadInput."""
    issuer = issuer.strip()
    try:
        parts = urlsplit(issuer)
        host, _port = parts.hostname, parts.port
    except ValueError:
        host = None
    plain = settings.OCTAVO_OIDC_PLAIN and issuer.startswith("http://")
    if not host or not (issuer.startswith("https://") or plain) or len(issuer) > 500 or not issuer.isprintable():
        raise BadInput(_("Give the issuer's full address, such as https://login.example.com."), param="issuer")
    if parts.query or parts.fragment or parts.username or parts.password or " " in issuer:
        raise BadInput(_("An issuer's address has no ?, no # and no user name."), param="issuer")
    return issuer


@transaction.atomic
def set_service(*, access: Access, issuer: str, client_id: str, secret: str | None, role: str, enabled: bool) -> SignIn:
    """`secret` None or empty: as it was. Another issuer is another authority, so it has to be confirmed anew."""
    access.require(Permission.MANAGE_SETTINGS)
    issuer, client_id = clean_issuer(issuer), client_id.strip()
    if not client_id or len(client_id) > 255 or not client_id.isprintable():
        raise BadInput(_("Give the client id that the service has for Octavo."), param="client_id")
    if role not in Role.values or role == Role.OWNER:
        raise BadInput(_("Choose a role other than owner."), param="role")
    if role == Role.ADMIN and access.role != Role.OWNER:
        raise BadInput(_("Only an owner can let everyone in as admin."), param="role")
    if secret and (len(secret) > LONGEST_SECRET or not secret.isprintable()):
        raise BadInput(_("A client secret is one line of at most 1000 characters."), param="secret")
    row = _of(access.tenant)
    if enabled and not secret and (not row.sealed_secret or (row.issuer and row.issuer != issuer)):
        raise BadInput(_("Give the client secret that this service has for Octavo."), param="secret")
    changes: dict[str, Any] = {
        name: [getattr(row, name), value]
        for name, value in (("issuer", issuer), ("client_id", client_id), ("role", role), ("enabled", enabled))
        if getattr(row, name) != value
    }
    if "issuer" in changes and row.issuer:
        _distrust(access.tenant, row)
        changes["domains"] = "to be confirmed anew"
        row.sealed_secret = ""
    if secret:
        row.sealed_secret = seal(secret, purpose=CLIENT_SECRET)
        changes["secret"] = "replaced"  # noqa: S105  that it was, not what it is
    if not changes:
        return row
    row.issuer, row.client_id, row.role, row.enabled = issuer, client_id, role, enabled
    row.save()
    record("sign_in.service_changed", actor=access.actor, tenant=access.tenant, on=row, details=changes)
    return row


def _distrust(tenant: Tenant, row: SignIn) -> None:
    """Another issuer could name any of the former one's people: nothing that was confirmed or linked holds for it."""
    DomainClaim.objects.filter(tenant=tenant).update(confirmed_at=None, confirmed_by=None)
    SocialAccount.objects.filter(provider=str(row.pk)).delete()


def forget_links(instance: SignIn, **_: Any) -> None:
    """For the signal post_delete: a team that is gone leaves no ids of people at its service behind."""
    SocialAccount.objects.filter(provider=str(instance.pk)).delete()


@transaction.atomic
def remove_service(*, access: Access) -> None:
    """People keep their accounts and memberships, and log in with a password (by reset, where they have none)."""
    access.require(Permission.MANAGE_SETTINGS)
    row = _of(access.tenant)
    if not row.issuer:
        return
    _distrust(access.tenant, row)
    former = row.issuer
    row.enabled, row.issuer, row.client_id, row.sealed_secret = False, "", "", ""
    row.save()
    record("sign_in.service_removed", actor=access.actor, tenant=access.tenant, on=row, details={"issuer": former})


def clean_domain(domain: str) -> str:
    """A mail domain in lower case and its ASCII form. Raises BadInput."""
    domain = domain.strip().rstrip(".").lower().removeprefix("@")
    try:
        domain = domain.encode("idna").decode("ascii") if not domain.isascii() else domain
    except UnicodeError:
        domain = ""
    labels = domain.split(".")
    if len(domain) > 253 or len(labels) < 2 or not all(LABEL.fullmatch(label) for label in labels):
        raise BadInput(_("Give a mail domain, such as example.com."), param="domain")
    try:
        ipaddress.ip_address(domain)
    except ValueError:
        pass
    else:
        raise BadInput(_("An address of a machine is no mail domain."), param="domain")
    if domain in PUBLIC_MAIL:
        raise BadInput(
            _("%(domain)s gives mailboxes to anybody, so nobody can claim it.") % {"domain": domain}, param="domain"
        )
    return domain


@transaction.atomic
def claim_domain(*, access: Access, domain: str) -> DomainClaim:
    access.require(Permission.MANAGE_SETTINGS)
    domain = clean_domain(domain)
    if DomainClaim.objects.filter(tenant=access.tenant).count() >= MOST_DOMAINS:
        raise Conflict(
            _("A team can claim %(most)s domains. Withdraw one first.") % {"most": MOST_DOMAINS}, param="domain"
        )
    claim, made = DomainClaim.objects.get_or_create(tenant=access.tenant, domain=domain)
    if not made:
        raise Conflict(_("Your team has claimed %(domain)s already.") % {"domain": domain}, param="domain")
    record("sign_in.domain_claimed", actor=access.actor, tenant=access.tenant, on=claim)
    return claim


@transaction.atomic
def withdraw_domain(*, access: Access, claim_id: Any) -> None:
    access.require(Permission.MANAGE_SETTINGS)
    claim = DomainClaim.objects.filter(tenant=access.tenant, pk=claim_id).first()
    if claim is None:
        raise NotFound(_("Your team has not claimed this domain."))
    record("sign_in.domain_withdrawn", actor=access.actor, tenant=access.tenant, on=claim)
    claim.delete()


@transaction.atomic
def confirm_domain(*, by: User, claim: DomainClaim) -> None:
    """An operator vouches that the team's service may speak for the domain. Raises Conflict where another holds it."""
    if claim.confirmed_at is not None:
        return
    service = SignIn.objects.filter(tenant=claim.tenant_id).first()
    if service is None or not service.issuer:
        raise Conflict(
            _("%(tenant)s has named no sign-in service yet that could speak for %(domain)s.")
            % {"tenant": claim.tenant, "domain": claim.domain}
        )
    claim.confirmed_at, claim.confirmed_by = timezone.now(), by
    try:
        with transaction.atomic():
            claim.save(update_fields=["confirmed_at", "confirmed_by"])
    except IntegrityError:
        claim.confirmed_at, claim.confirmed_by = None, None
        raise Conflict(_("%(domain)s is held by another team already.") % {"domain": claim.domain}) from None
    record(
        "sign_in.domain_confirmed",
        actor=operator(by),
        tenant=claim.tenant,
        on=claim,
        details={"issuer": service.issuer},
    )


@transaction.atomic
def take_back_domain(*, by: User, claim: DomainClaim) -> None:
    if claim.confirmed_at is None:
        return
    claim.confirmed_at, claim.confirmed_by = None, None
    claim.save(update_fields=["confirmed_at", "confirmed_by"])
    record("sign_in.domain_taken_back", actor=operator(by), tenant=claim.tenant, on=claim)
