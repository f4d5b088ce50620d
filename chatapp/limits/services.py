"""What changes limits: a team's admins set lower ones for people and keys; operators set plans and overrides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from chatapp.audit.services import Actor, record
from chatapp.errors import BadInput, Conflict, Forbidden, NotFound
from chatapp.ids import parse_id
from chatapp.languages import number
from chatapp.limits.models import ALL, LOWER, LowerLimits, Plan, TenantLimits
from chatapp.limits.selectors import ensure, limits_of_team
from chatapp.limits.values import BY_NAME
from chatapp.limits.warning import limit_changed
from chatapp.tenants.access import Access
from chatapp.tenants.models import ApiKey, Membership, Tenant
from chatapp.tenants.permissions import Permission

MOST = 2**31 - 1
MOST_TOKENS = 2**53


@transaction.atomic
def set_lower(
    *, access: Access, values: Mapping[str, int | None], member_id: object = None, key_id: object = None
) -> LowerLimits | None:
    """Set what one person (of this membership), one key, or (neither) every person may do. Replaces what was set.

    Values of None are not limited beyond the team's; with nothing but None the row goes, and None is returned. Raises
    BadInput for a value that is none or above the team's, with its field; NotFound for what is not this team's;
    Forbidden where a key would allow a key, itself too, more than it may.
    """
    access.require(Permission.MANAGE_LIMITS)
    tenant = access.tenant
    if member_id is not None and key_id is not None:
        raise BadInput(_("Name a person or a key, not both."), param="key_id")
    whose: dict[str, Any] = {"user": None, "key": None}
    name = "Every person"
    if member_id is not None:
        member = Membership.objects.filter(tenant=tenant, pk=parse_id(member_id)).select_related("user").first()
        if member is None:
            raise NotFound(_("There is no such person in this team."), param="member_id")
        whose["user"], name = member.user, member.user.email
    elif key_id is not None:
        key = ApiKey.objects.filter(tenant=tenant, pk=parse_id(key_id)).first()
        if key is None:
            raise NotFound(_("This team has no such key."), param="key_id")
        whose["key"], name = key, str(key)
    wanted = _checked(tenant, values)
    if key_id is not None:
        _hold_to_own(access, wanted)
    found = LowerLimits.objects.select_for_update().filter(tenant=tenant, **whose).first()
    before = {column: getattr(found, column) if found else None for column in LOWER}
    changes = {column: [before[column], wanted[column]] for column in LOWER if before[column] != wanted[column]}
    if not changes:
        return found
    if not any(wanted.values()):
        assert found is not None
        record("limits.removed", actor=access.actor, tenant=tenant, on=found, name=name, details=changes)
        found.delete()
        return None
    if found is None:
        try:
            with transaction.atomic():
                found = LowerLimits.objects.create(tenant=tenant, **whose, **wanted)
        except IntegrityError:
            raise Conflict(_("Somebody has just set limits here. Look at them, and try again.")) from None
    else:
        for column, value in wanted.items():
            setattr(found, column, value)
        found.save(update_fields=list(wanted))
    record("limits.lowered", actor=access.actor, tenant=tenant, on=found, name=name, details=changes)
    return found


def inherit(*, instance: ApiKey, created: bool, **_: Any) -> None:
    """For the signal post_save: a key may do no more than the key that it replaces, or that made it."""
    source = instance.replaces_id or instance.created_with_id
    if not created or source is None:
        return
    for former in LowerLimits.objects.filter(tenant=instance.tenant_id, key=source):
        columns = {name: getattr(former, name) for name in LOWER}
        LowerLimits.objects.create(tenant_id=instance.tenant_id, key=instance, **columns)


@transaction.atomic
def remove_lower(*, access: Access, lower_id: object) -> None:
    """Back to the wider limits. Raises NotFound, and Forbidden as `set_lower`."""
    access.require(Permission.MANAGE_LIMITS)
    rows = LowerLimits.objects.select_for_update(of=("self",)).filter(tenant=access.tenant, pk=parse_id(lower_id))
    found = rows.select_related("user", "key").first()
    if found is None:
        raise NotFound(_("There are no such limits in this team."))
    if found.key is not None:
        _hold_to_own(access, {})
    name = found.user.email if found.user else str(found.key) if found.key else "Every person"
    changes = {column: [getattr(found, column), None] for column in LOWER if getattr(found, column) is not None}
    record("limits.removed", actor=access.actor, tenant=access.tenant, on=found, name=name, details=changes)
    found.delete()


@transaction.atomic
def set_plan(*, tenant: Tenant, plan: Plan, overrides: Mapping[str, Any], actor: Actor) -> TenantLimits:
    """An operator's: the plan of a tenant, and what holds otherwise for it alone. Into the tenant's log."""
    row = TenantLimits.objects.select_for_update().get(pk=ensure(tenant).pk)
    changes: dict[str, Any] = {}
    if row.plan_id != plan.pk:
        changes["plan"] = [row.plan.name, plan.name]
    row.plan = plan
    for name in ALL:
        before, after = getattr(row, name), overrides.get(name)
        if before != after:
            changes[name] = [before, after]
        setattr(row, name, after)
    row.save()
    if changes:
        record("limits.changed", actor=actor, tenant=tenant, on=row, name=f"Plan {plan.name}", details=changes)
        limit_changed(tenant)
    return row


@transaction.atomic
def plan_changed(*, plan: Plan, before: Mapping[str, Any], actor: Actor) -> None:
    """A plan has been edited: it concerns the platform, and each tenant that has it."""
    changes = {name: [before.get(name), getattr(plan, name)] for name in ALL if before.get(name) != getattr(plan, name)}
    record("plan.changed" if before else "plan.created", actor=actor, tenant=None, on=plan, details=changes)
    if not before or not changes:
        return
    for row in TenantLimits.objects.filter(plan=plan).select_related("tenant"):
        record("limits.changed", actor=actor, tenant=row.tenant, on=row, name=f"Plan {plan.name}", details=changes)
        limit_changed(row.tenant)


@transaction.atomic
def make_default(*, plan: Plan, actor: Actor) -> None:
    """New tenants get this plan from now on."""
    Plan.objects.filter(is_default=True).exclude(pk=plan.pk).update(is_default=False)
    if Plan.objects.filter(pk=plan.pk, is_default=False).update(is_default=True):
        record("plan.made_default", actor=actor, tenant=None, on=plan)


def _hold_to_own(access: Access, wanted: Mapping[str, int | None]) -> None:
    """Raises Forbidden where a limited key would lift its limits, by itself or through another key."""
    own = LowerLimits.objects.filter(tenant=access.tenant, key=access.key).first() if access.key is not None else None
    for column in LOWER:
        most, value = getattr(own, column, None), wanted.get(column)
        if most is not None and (value is None or value > most):
            raise Forbidden(
                _("%(title)s: a key cannot allow a key more than its own %(most)s.")
                % {"title": _(BY_NAME[column].title), "most": number(most)},
                param=column,
            )


def _checked(tenant: Tenant, values: Mapping[str, int | None]) -> dict[str, int | None]:
    unknown = sorted(set(values) - set(LOWER))
    if unknown:
        raise BadInput(
            _("There is no limit %(text)s for a person or key.") % {"text": f"{unknown[0][:40]!r}"},
            param=unknown[0][:60],
        )
    team = limits_of_team(tenant).team
    clean: dict[str, int | None] = {}
    for name in LOWER:
        value = values.get(name)
        if value is None:
            clean[name] = None
            continue
        kind = BY_NAME[name]
        most = MOST_TOKENS if name == "tokens_per_month" else MOST
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise BadInput(
                _("%(title)s must be a whole number from 1 to %(most)s.")
                % {"title": _(kind.title), "most": number(most)},
                param=name,
            )
        limit = getattr(team, name)
        if limit is not None and value > limit:
            raise BadInput(
                _("%(title)s: the team itself may have %(limit)s; set that or less.")
                % {"title": _(kind.title), "limit": number(limit)},
                param=name,
            )
        clean[name] = value
    return clean
