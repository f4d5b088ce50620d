"""A team's limits: what it may use, what it uses now, and what its people and keys may at most."""

from __future__ import annotations

import uuid
from typing import Any

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _l
from django.utils.translation import gettext_noop as _n

from chatapp.errors import BadInput, NotFound, Refusal
from chatapp.languages import number
from chatapp.limits import selectors, services
from chatapp.limits.models import LOWER, LowerLimits
from chatapp.limits.values import OF_PERSON
from chatapp.tenants.access import Access
from chatapp.tenants.models import ApiKey, Membership
from chatapp.tenants.pages import is_repeat, page, refuse, tenant_page
from chatapp.tenants.permissions import Permission

PAGE = 50
SUGGESTIONS = 200
# Behind a number: "20 requests a minute".
PHRASES = {
    "requests_per_minute": _n("requests a minute"),
    "tokens_per_minute": _n("tokens a minute"),
    "concurrent_answers": _n("answers at once"),
    "context_tokens": _n("tokens in a prompt"),
    "output_tokens": _n("tokens in an answer"),
    "tokens_per_month": _n("tokens a month"),
}


class LowerForm(forms.Form):
    """`who`: an address, the first characters of a key, or nothing for every person."""

    who = forms.CharField(
        label=_l("Who"),
        required=False,
        max_length=254,
        help_text=_l(
            "A person's email address, or a key's first characters. Leave it empty for every person who has no limits"
            " of their own."
        ),
        widget=forms.TextInput(attrs={"list": "who", "autocomplete": "off"}),
    )

    def __init__(self, *args: Any, team: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for kind in OF_PERSON:
            most = getattr(team, kind.name)
            self.fields[kind.name] = forms.IntegerField(
                label=f"{_(kind.title)} ({_(kind.unit)})" if kind.unit not in kind.title.lower() else _(kind.title),
                required=False,
                min_value=1,
                max_value=most,
                help_text=_("At most %(most)s, as for the team.") % {"most": number(most)} if most is not None else "",
                error_messages={"max_value": f"The team itself may have {most or 0:,}; set that or less."},
            )

    def values(self) -> dict[str, int | None]:
        return {name: self.cleaned_data.get(name) for name in LOWER}


@tenant_page(Permission.READ_LIMITS)
def overview(request: HttpRequest, access: Access) -> HttpResponse:
    tenant = access.tenant
    rows = Paginator(selectors.lower_limits(tenant), PAGE).get_page(request.GET.get("page"))
    used = selectors.used_by_subject(tenant, selectors.month_of(timezone.now()))
    lower = [_row(row, used) for row in rows]
    if rows.number == 1 and (default := selectors.default_lower(tenant)) is not None:
        lower.insert(0, _row(default, used))
    context = {
        "plan": selectors.ensure(tenant).plan,
        "uses": selectors.use_of_team(tenant),
        "rows": rows,
        "lower": lower,
    }
    return page(request, access, "tenant/limits.html", context)


@tenant_page(Permission.MANAGE_LIMITS, methods=("GET", "HEAD", "POST"))
def lower(request: HttpRequest, access: Access) -> HttpResponse:
    """The form for one person, key, or everybody; ?who= says whose it shows."""
    tenant = access.tenant
    team = selectors.limits_of_team(tenant).team
    who = request.GET.get("who", "").strip()[:254]
    for_new = bool(request.GET.get("who")) and not who
    if request.method == "POST":
        form = LowerForm(request.POST, team=team)
        if form.is_valid():
            if is_repeat(request):
                return redirect("tenant-limits", tenant.slug)
            try:
                whose = _whose(access, form.cleaned_data["who"].strip())
                found = services.set_lower(access=access, values=form.values(), **whose)
            except Refusal as refusal:
                refuse(form, refusal)
            else:
                name = form.cleaned_data["who"].strip() or _("every person")
                said = (
                    _("Limits for %(name)s are set.") % {"name": name}
                    if found
                    else _("The team's limits hold for %(name)s.") % {"name": name}
                )
                messages.success(request, f"{said} {_('They hold from the next request on.')}")
                return redirect("tenant-limits", tenant.slug)
    else:
        form = LowerForm(team=team, initial={} if for_new else {"who": who, **_initial(access, who)})
    people = Membership.objects.filter(tenant=tenant).order_by("user__email")
    context = {
        "form": form,
        "section": "tenant-limits",
        "people": people.values_list("user__email", flat=True)[:SUGGESTIONS],
        "keys": ApiKey.objects.filter(tenant=tenant, revoked_at=None).order_by("name")[:SUGGESTIONS],
    }
    status = 400 if form.is_bound else 200
    return page(request, access, "tenant/limits_lower.html", context, status=status)


@tenant_page(Permission.MANAGE_LIMITS, methods=("POST",))
def remove(request: HttpRequest, access: Access, lower_id: uuid.UUID) -> HttpResponse:
    services.remove_lower(access=access, lower_id=lower_id)
    messages.success(request, _("Only the team's limits hold here now."))
    return redirect("tenant-limits", access.tenant.slug)


# --- parts --------------------------------------------------------------------------------------------------------


def _whose(access: Access, who: str) -> dict[str, object]:
    """Raises BadInput where nobody is called so."""
    if not who:
        return {}
    member = Membership.objects.filter(tenant=access.tenant, user__email__iexact=who).first()
    if member is not None:
        return {"member_id": member.pk}
    keys = list(ApiKey.objects.filter(tenant=access.tenant, prefix=who.rstrip("…"), revoked_at=None)[:2])
    if len(keys) == 1:
        return {"key_id": keys[0].pk}
    raise BadInput(_("This team has no person with this address and no key that begins so."), param="who")


def _initial(access: Access, who: str) -> dict[str, int | None]:
    rows = LowerLimits.objects.filter(tenant=access.tenant)
    try:
        whose = _whose(access, who)
    except (BadInput, NotFound):
        return {}
    if "member_id" in whose:
        found = rows.filter(user__memberships=whose["member_id"]).first()
    elif "key_id" in whose:
        found = rows.filter(key=whose["key_id"]).first()
    else:
        found = selectors.default_lower(access.tenant)
    return {name: getattr(found, name) for name in LOWER} if found is not None else {}


def _row(row: LowerLimits, used: dict[str, int]) -> dict[str, Any]:
    subject = f"user:{row.user_id}" if row.user_id else f"key:{row.key_id}"
    return {
        "id": row.pk,
        "who": row.user.email if row.user is not None else row.key.prefix if row.key is not None else "",
        "name": row.key.name if row.key is not None else "",
        "values": [(_(PHRASES[name]), value) for name in LOWER if (value := getattr(row, name)) is not None],
        "used": used.get(subject, 0),
    }
