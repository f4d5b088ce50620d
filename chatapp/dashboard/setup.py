"""/setup: the first operator, the site's name and mail, and the first team. It exists while there is no operator.

Only who has the link from the server's log gets to the form: on a network others may be quicker. After it the operator
is logged in and sees the checklist.
"""

from __future__ import annotations

import hmac

from django.contrib import messages
from django.contrib.auth import login
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _l
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from chatapp.accounts.selectors import has_operator
from chatapp.dashboard.setup_forms import SetupForm, TestMailForm
from chatapp.errors import BadInput, Conflict, Refusal
from chatapp.operators.selectors import setup_token
from chatapp.operators.services import NewTeam, set_up
from chatapp.operators.site import send_test_mail
from chatapp.site import selectors as site
from chatapp.site.smtp import NotSent
from chatapp.tenants.pages import refuse

PARTS = (
    (_l("You"), _l("The first operator: makes teams, sees the machine, and no chats."), ("email", "password", "again")),
    (_l("This site"), "", ("site_name",)),
    (_l("Mail"), "", ("smtp_url", "mail_from")),
    (_l("First team"), _l("People chat in teams. Empty: none yet."), ("tenant_name", "tenant_slug", "owner_email")),
)  # fmt: skip


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def setup(request: HttpRequest) -> HttpResponse:
    if has_operator():
        raise Http404
    token = (request.POST if request.method == "POST" else request.GET).get("token", "").strip()
    if not hmac.compare_digest(token.encode(), setup_token().encode()):
        return render(request, "setup/token.html", {"wrong": bool(token)}, status=403 if token else 200)
    if request.method != "POST":
        return _page(request, SetupForm(initial={"token": token}))
    form = SetupForm(request.POST)
    if request.POST.get("action") == "test":
        return _tested(request, form)
    if not form.is_valid():
        return _page(request, form, status=400)
    data = {name: value for name, value in form.cleaned_data.items() if name not in ("token", "again")}
    if site.mail().from_environment:
        data["smtp_url"] = data["mail_from"] = ""  # was shown and not asked for
    try:
        done = set_up(**data)
    except Conflict:
        raise Http404 from None  # somebody was a moment faster
    except Refusal as refusal:
        refuse(form, refusal)
        return _page(request, form, status=400)
    login(request, done.operator, backend="django.contrib.auth.backends.ModelBackend")
    messages.success(request, _("%(name)s is set up, and you are its operator.") % {"name": data["site_name"]})
    if done.team is not None:
        tell_of_owner(request, done.team)
    return redirect("checklist")


def _tested(request: HttpRequest, form: SetupForm) -> HttpResponse:
    """Send the test mail and show the form as it was, with how that went beside the button."""
    wanted = TestMailForm(request.POST)
    problem = ""
    if not wanted.is_valid():
        field, errors = next(iter(wanted.errors.items()))
        problem = f"{SetupForm.base_fields[field].label}: {errors[0]}"
    else:
        data = wanted.cleaned_data
        try:
            send_test_mail(
                to=data["email"], smtp_url="" if site.mail().from_environment else data["smtp_url"],
                mail_from=data["mail_from"], site_name=data["site_name"],
            )  # fmt: skip
        except BadInput as refusal:
            problem = refusal.message
        except NotSent as error:
            problem = str(error)
    shown = SetupForm(initial={name: request.POST.get(name, "") for name in form.fields})
    tested = {
        "good": not problem,
        "text": problem or _("Sent. Look whether it is at %(email)s.") % {"email": request.POST.get("email")},
    }
    return _page(request, shown, status=400 if problem else 200, tested=tested)


def tell_of_owner(request: HttpRequest, team: NewTeam) -> None:
    """What the operator has to do for the owner of a new team, if anything."""
    if team.mailed:
        messages.success(
            request,
            _("%(email)s has been told by mail that %(name)s is theirs.")
            % {"email": team.owner.email, "name": team.tenant.name},
        )
    elif team.link:
        text = _("No mail was sent. Hand this link on to %(email)s; it works for 72 hours: %(link)s") % {
            "email": team.owner.email,
            "link": team.link,
        }
        messages.warning(request, text)


def _page(
    request: HttpRequest, form: SetupForm, *, status: int = 200, tested: dict[str, object] | None = None
) -> HttpResponse:
    mail = site.mail()
    if mail.from_environment:
        for name in ("smtp_url", "mail_from"):
            form.fields[name].disabled = True
            form.fields[name].help_text = _("Set by the environment of this server.")
        form.initial["smtp_url"] = mail.server.shown if mail.server else mail.trouble
        form.initial["mail_from"] = mail.sender
    parts = [(title, text, [form[name] for name in names]) for title, text, names in PARTS]
    return render(request, "setup/setup.html", {"form": form, "parts": parts, "tested": tested}, status=status)
