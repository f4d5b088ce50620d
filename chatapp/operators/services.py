"""What operators do: set the site up, make teams, suspend and resume them, say which models they use.

Each is one transaction, and stands in the team's own audit log with the operator's name. Deleting a team is
chatapp.data's: it reaches Redis, KV, exports and backups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis.exceptions
import structlog
from allauth.account.models import EmailAddress
from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.text import slugify
from django.utils.translation import gettext as _

from chatapp.accounts.models import User
from chatapp.accounts.selectors import has_operator
from chatapp.audit.services import Actor, operator, record
from chatapp.chat.models import UNFINISHED, Generation
from chatapp.errors import BadInput, Conflict
from chatapp.operators import deletions, links
from chatapp.operators.site import clean_mail, clean_name, locked, sealed
from chatapp.scope import unscoped
from chatapp.streaming import cancel
from chatapp.tenants.models import Membership, Role, Tenant

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class NewTeam:
    """`link` is there when the owner has an account that nobody has a password of yet; `mailed`: it was sent."""

    tenant: Tenant
    owner: User
    link: str = ""
    mailed: bool = False


@dataclass(frozen=True)
class SetUp:
    operator: User
    team: NewTeam | None


@unscoped("set-up")
def set_up(
    *,
    email: str,
    password: str,
    site_name: str,
    smtp_url: str = "",
    mail_from: str = "",
    tenant_name: str = "",
    tenant_slug: str = "",
    owner_email: str = "",
) -> SetUp:
    """Make the first operator, the site's settings and, if it has a name, the first team: all or nothing.

    `owner_email` empty: the operator owns the team. Raises BadInput with the field, and Conflict when somebody has set
    the site up already: of two at once one wins.
    """
    email = _address(email, "email")
    site_name = clean_name(site_name)
    smtp_url, mail_from = clean_mail(smtp_url, mail_from)
    with transaction.atomic():
        row = locked()
        if has_operator():
            raise Conflict(_("This site has been set up already. Log in as its operator."), code="already_set_up")
        user = User.objects.filter(email__iexact=email).first()
        _check_password(password, user or User(email=email))
        if user is None:
            user = User.objects.create_user(email, password, is_staff=True, is_superuser=True)
        else:
            user.set_password(password)
            user.is_staff = user.is_superuser = user.is_active = True
            user.save()
        EmailAddress.objects.update_or_create(user=user, email=user.email, defaults={"verified": True, "primary": True})
        row.name, row.sealed_smtp_url, row.mail_from = site_name, sealed(smtp_url), mail_from
        row.set_up_at = row.updated_at = timezone.now()
        row.save()
        actor = operator(user)
        record("site.set_up", actor=actor, tenant=None, on=row, details={"name": site_name, "mail": bool(smtp_url)})
        team = None
        if tenant_name.strip() or tenant_slug.strip() or owner_email.strip():
            team = _make(actor, tenant_name, tenant_slug, owner_email or email, {})
    # Who sits at the page need not be told by mail.
    return SetUp(user, _tell(team) if team and team.owner != user else team)


def create_tenant(
    *, by: User, name: str, slug: str, owner_email: str, fields: Mapping[str, Any] | None = None
) -> NewTeam:
    """A team and its owner: who has that address, or a new account whose password is chosen by a link.

    `fields`: others of the team's own. Raises BadInput with the field.
    """
    with transaction.atomic():
        team = _make(operator(by), name, slug, owner_email, fields or {})
    return _tell(team)


@transaction.atomic
def change_tenant(*, by: User, tenant: Tenant, fields: Mapping[str, Any]) -> Tenant:
    """The log has what each was and is. Raises BadInput with the field."""
    row = Tenant.objects.select_for_update().get(pk=tenant.pk)
    before = {name: getattr(row, name) for name in fields}
    _set(row, fields)
    changed = {name: [value, getattr(row, name)] for name, value in before.items() if value != getattr(row, name)}
    if changed:
        _save(row)
        record("team.changed", actor=operator(by), tenant=row, on=row, details=changed)
    return row


def suspend_tenant(*, by: User, tenant: Tenant, reason: str = "") -> None:
    """From now on the team does not exist for its members and keys: pages and calls at once, sockets within a second.

    What is being answered or waits for an answer is cancelled: a team that is suspended for what it does must not go on
    doing it. Nothing is lost. Repeating it changes nothing. One that is closed for its deletion stays closed when its
    owner undoes that.
    """
    with transaction.atomic():
        row = Tenant.objects.select_for_update().get(pk=tenant.pk)
        if row.suspended_at is None:
            Tenant.objects.filter(pk=row.pk).update(suspended_at=timezone.now())
        elif not deletions.stay_suspended(row):
            return
        details = {"reason": reason.strip()[:500]} if reason.strip() else {}
        record("team.suspended", actor=operator(by), tenant=tenant, on=tenant, details=details)
        cancel_answers(tenant)


@transaction.atomic
def resume_tenant(*, by: User, tenant: Tenant) -> None:
    """Raises Conflict for one that is being deleted: people would work in it until it is gone."""
    row = Tenant.objects.select_for_update().get(pk=tenant.pk)
    if deletions.running(row):
        raise Conflict(
            _("%(name)s is being deleted. Undo the deletion to open it again.") % {"name": row.name},
            code="deletion_running",
        )
    if Tenant.objects.filter(pk=tenant.pk).exclude(suspended_at=None).update(suspended_at=None):
        record("team.resumed", actor=operator(by), tenant=tenant, on=tenant)


# --- parts --------------------------------------------------------------------------------------------------------


def _address(email: str, param: str) -> str:
    email = email.strip().lower()
    try:
        validate_email(email)
        if len(email) > 254:
            raise ValidationError("long")
    except ValidationError:
        raise BadInput(_("This is no email address."), param=param) from None
    return email


def _check_password(password: str, user: User) -> None:
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise BadInput(" ".join(error.messages), param="password") from None


def _make(actor: Actor, name: str, slug: str, owner_email: str, fields: Mapping[str, Any]) -> NewTeam:
    owner_email = _address(owner_email, "owner_email")
    tenant = Tenant()
    _set(tenant, {**fields, "name": name, "slug": slug.strip() or slugify(name)[:40].strip("-")})
    _save(tenant)
    record("team.created", actor=actor, tenant=tenant, on=tenant, details={"slug": tenant.slug, "owner": owner_email})
    owner = User.objects.filter(email__iexact=owner_email).first()
    link = ""
    if owner is None:
        owner = User.objects.create_user(owner_email)
        # Verified by the link, which only reaches whoever has the address, or by the operator who hands it on.
        EmailAddress.objects.create(user=owner, email=owner.email, verified=True, primary=True)
    elif not owner.is_active:
        raise BadInput(_("This account is closed; take another address."), param="owner_email")
    if not owner.has_usable_password():
        link = links.password_link(owner)
    membership = Membership.objects.create(tenant=tenant, user=owner, role=Role.OWNER)
    record("member.added", actor=actor, tenant=tenant, on=membership, name=owner.email, details={"role": Role.OWNER})
    return NewTeam(tenant, owner, link)


def _tell(team: NewTeam) -> NewTeam:
    """After the transaction: a mail about a team that was not made would be worse than none."""
    return NewTeam(team.tenant, team.owner, team.link, links.mail_welcome(team.owner, team.tenant, team.link))


def _set(tenant: Tenant, fields: Mapping[str, Any]) -> None:
    default = fields.get("default_model")
    if default and default != tenant.default_model and default not in settings.OCTAVO_MODEL_NAMES:
        served = ", ".join(settings.OCTAVO_MODEL_NAMES)
        raise BadInput(_("No such model is served; there is %(served)s.") % {"served": served}, param="default_model")
    for name, value in fields.items():
        assert Tenant._meta.get_field(name).editable, name
        setattr(tenant, name, " ".join(value.split()) if name == "name" else value)
    if not isinstance(tenant.allowed_models, list) or not all(isinstance(m, str) for m in tenant.allowed_models):
        raise BadInput(_("A list of names of models."), param="allowed_models")
    try:
        tenant.full_clean(exclude=["salt"], validate_unique=False)
    except ValidationError as error:
        params = {"name": "tenant_name", "slug": "tenant_slug"}
        for name, messages in error.message_dict.items():
            raise BadInput(" ".join(messages), param=params.get(name, name)) from None


def _save(tenant: Tenant) -> None:
    try:
        with transaction.atomic():
            tenant.save()
    except IntegrityError:
        raise BadInput(_("There is a team with this short name already."), param="tenant_slug") from None


def cancel_answers(tenant: Tenant) -> None:
    """What runs and what waits, once the transaction that closes the team is through."""
    running = list(Generation.objects.filter(tenant=tenant, state__in=UNFINISHED).values_list("pk", flat=True))
    transaction.on_commit(lambda: _cancel(running))


def _cancel(generations: Sequence[Any]) -> None:
    """As far as Redis answers; what it does not hear of, it ends at its deadline."""
    for pk in generations:
        try:
            cancel.cancel(str(pk))
        except redis.exceptions.RedisError as error:
            log.warning("suspended.not_cancelled", generation=str(pk), error=type(error).__name__)
            return
