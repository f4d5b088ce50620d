"""Teams, memberships and the site in the operators' admin: what they do there stands in the team's audit log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.forms import BaseForm, BaseFormSet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.admin import ModelAdmin
from unfold.decorators import action, display

from chatapp.accounts.models import User
from chatapp.audit.services import operator, record
from chatapp.errors import BadInput, Refusal
from chatapp.events import tell
from chatapp.operators import deletions, selectors, services
from chatapp.operators.forms import DeleteForm, SiteSettingsForm, SuspendForm, TenantForm
from chatapp.operators.site import save_settings, send_test_mail
from chatapp.site.models import SiteSettings
from chatapp.site.smtp import NotSent
from chatapp.tenants import admin as plain
from chatapp.tenants.members import joined
from chatapp.tenants.models import Membership, Tenant


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user


class StateFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("active", "Active"), ("suspended", "Suspended")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> QuerySet[Tenant]:
        if self.value() == "active":
            return queryset.filter(suspended_at=None)
        if self.value() == "suspended":
            return queryset.exclude(suspended_at=None)
        return queryset


admin.site.unregister(Tenant)


@admin.register(Tenant)
class TenantAdmin(plain.TenantAdmin):
    form = TenantForm
    list_display = (  # type: ignore[assignment]
        "name",
        "slug",
        "state",
        "members",
        "keys",
        "running",
        "answers",
        "tokens",
        "model_names",
        "created_at",
    )
    list_filter = (StateFilter,)
    search_fields = ("name", "slug", "memberships__user__email")  # type: ignore[assignment]
    show_full_result_count = False
    list_per_page = 50
    actions = ("suspend_selected", "resume_selected")
    actions_detail = ("suspend", "resume", "remove")

    def get_fields(self, request: HttpRequest, obj: Tenant | None = None) -> tuple[str, ...]:
        own = ("name", "slug", "owner_email", "accent", "default_model", "allowed_models")
        others = tuple(name for name in plain.TenantAdmin.fields if name not in own)
        hidden = "created_at" if obj is None else "owner_email"
        return tuple(name for name in (*own, *others) if name != hidden)

    def get_inlines(self, request: HttpRequest, obj: Tenant | None) -> tuple[Any, ...]:
        return () if obj is None else tuple(self.inlines)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Tenant]:
        return selectors.with_figures(super().get_queryset(request))

    @display(description="State", label={"Active": "success", "Suspended": "danger"})
    def state(self, obj: Tenant) -> str:
        return "Suspended" if obj.suspended_at else "Active"

    @display(description="Members", ordering="member_count")
    def members(self, obj: Any) -> int:
        return int(obj.member_count)

    @display(description="Keys", ordering="key_count")
    def keys(self, obj: Any) -> int:
        return int(obj.key_count)

    @display(description="Running", ordering="running_count")
    def running(self, obj: Any) -> int:
        return int(obj.running_count)

    @display(description="Answers, 30 days", ordering="answer_count")
    def answers(self, obj: Any) -> str:
        return f"{obj.answer_count:,}"

    @display(description="Tokens, 30 days", ordering="token_count")
    def tokens(self, obj: Any) -> str:
        return f"{obj.token_count:,}"

    @display(description="Models")
    def model_names(self, obj: Tenant) -> str:
        return ", ".join(obj.models) or "none is served"

    # --- what is changed ----------------------------------------------------------------------------------------------

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> Tenant:
        """The row as it was: the service sets what was changed, so that the log has both."""
        super().save_form(request, form, change)
        if not change:
            return Tenant()
        return Tenant.objects.get(pk=form.instance.pk)

    def save_model(self, request: HttpRequest, obj: Tenant, form: Any, change: bool) -> None:
        fields = {name: form.cleaned_data[name] for name in form.changed_data if name != "owner_email"}
        if change:
            services.change_tenant(by=_user(request), tenant=obj, fields=fields)
            return
        rest = {name: value for name, value in fields.items() if name not in ("name", "slug")}
        team = services.create_tenant(
            by=_user(request),
            name=form.cleaned_data["name"],
            slug=form.cleaned_data["slug"],
            owner_email=form.cleaned_data["owner_email"],
            fields=rest,
        )
        # The form's object stands for the row from here on, so that the admin logs and links the right one.
        obj.__dict__.update(team.tenant.__dict__)
        if team.mailed:
            self.message_user(request, f"{team.owner.email} has been told by mail.", messages.SUCCESS)
        elif team.link:
            text = f"No mail was sent. Hand this link on to {team.owner.email}; it works for 72 hours: {team.link}"
            self.message_user(request, text, messages.WARNING)

    def save_formset(self, request: HttpRequest, form: Any, formset: BaseFormSet, change: bool) -> None:
        super().save_formset(request, form, formset, change)
        if getattr(formset, "model", None) is not Membership:
            return
        made: Any = formset
        for member in made.new_objects:
            _note_member(request, "member.added", member, {"role": member.role})
        for member, names in made.changed_objects:
            _note_member(request, "member.changed", member, {name: str(getattr(member, name)) for name in names})
        for member in made.deleted_objects:
            _note_member(request, "member.removed", member, {})

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().changeform_view(request, *args, **kwargs)
        except BadInput as refusal:
            # What the form cannot know: said on the page it came from, and nothing is half done.
            self.message_user(request, refusal.message, messages.ERROR)
            return redirect(request.get_full_path())

    def has_delete_permission(self, request: HttpRequest, obj: Tenant | None = None) -> bool:
        return False  # see `remove`: rows alone are the least of it

    # --- suspending and deleting --------------------------------------------------------------------------------------

    @admin.action(description="Suspend the selected teams")
    def suspend_selected(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        for tenant in queryset:
            services.suspend_tenant(by=_user(request), tenant=tenant)
        self.message_user(request, "Suspended: their members and keys are out.")

    @admin.action(description="Resume the selected teams")
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        resumed = 0
        for tenant in queryset:
            try:
                services.resume_tenant(by=_user(request), tenant=tenant)
            except Refusal as refusal:
                self.message_user(request, refusal.message, messages.WARNING)
            else:
                resumed += 1
        if resumed:
            self.message_user(request, "Resumed.")

    @action(description="Suspend…", url_path="suspend", permissions=["suspend"])
    def suspend(self, request: HttpRequest, object_id: str) -> HttpResponse:
        tenant = self._tenant(request, object_id)

        def done(form: BaseForm) -> str:
            services.suspend_tenant(by=_user(request), tenant=tenant, reason=form.cleaned_data["reason"])
            return f"{tenant.name} is suspended: its members and keys are out, what ran was cancelled."

        text = (
            f"For its members and keys {tenant.name} does not exist from then on, within a second. Answers that run or "
            "wait are cancelled. Nothing is lost, and it can be resumed."
        )
        form = SuspendForm(request.POST or None)
        return self._ask(request, tenant, form, title=f"Suspend {tenant.name}?", text=text, verb="Suspend", do=done)

    @action(description="Resume…", url_path="resume", permissions=["resume"])
    def resume(self, request: HttpRequest, object_id: str) -> HttpResponse:
        tenant = self._tenant(request, object_id)

        def done(form: BaseForm) -> str:
            services.resume_tenant(by=_user(request), tenant=tenant)
            return f"{tenant.name} is back."

        text = "Its members and keys get in again as before."
        return self._ask(request, tenant, None, title=f"Resume {tenant.name}?", text=text, verb="Resume", do=done)

    @action(description="Delete…", url_path="remove", permissions=["remove"])
    def remove(self, request: HttpRequest, object_id: str) -> HttpResponse:
        tenant = self._tenant(request, object_id)
        if not deletions.installed():
            raise Http404

        def done(form: BaseForm) -> str:
            deletions.request(tenant, operator(_user(request)))
            return f"{tenant.name} is being deleted."

        text = "All of it goes: people's places in it, chats, prompts, keys, exports, and what the engine remembers."
        form = DeleteForm(request.POST or None, tenant=tenant)
        return self._ask(request, tenant, form, title=f"Delete {tenant.name}?", text=text, verb="Delete", do=done)

    def has_suspend_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self._in_state(request, object_id, suspended=False)

    def has_resume_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self._in_state(request, object_id, suspended=True)

    def has_remove_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return deletions.installed() and self.has_change_permission(request)

    def _in_state(self, request: HttpRequest, object_id: str | None, *, suspended: bool) -> bool:
        if not self.has_change_permission(request):
            return False
        # A second press on the page's button finds it done already, which is no error.
        if object_id is None or request.method == "POST":
            return True
        return Tenant.objects.filter(pk=object_id, suspended_at__isnull=not suspended).exists()

    def _tenant(self, request: HttpRequest, object_id: str) -> Tenant:
        if not self.has_change_permission(request):
            raise PermissionDenied
        tenant = self.get_object(request, object_id)
        if tenant is None:
            raise Http404
        return tenant

    def _ask(
        self,
        request: HttpRequest,
        tenant: Tenant,
        form: BaseForm | None,
        *,
        title: str,
        text: str,
        verb: str,
        do: Callable[[Any], str],
    ) -> HttpResponse:
        """The page that asks before; a link alone changes nothing."""
        page = reverse("admin:tenants_tenant_change", args=[tenant.pk])
        if request.method == "POST" and (form is None or form.is_valid()):
            try:
                self.message_user(request, do(form), messages.SUCCESS)
            except Refusal as refusal:
                self.message_user(request, refusal.message, messages.ERROR)
            return redirect("admin:tenants_tenant_changelist" if verb == "Delete" else page)
        context = {
            **self.admin_site.each_context(request),
            "title": title, "text": text, "verb": verb, "form": form, "back": page, "opts": self.opts,
        }  # fmt: skip
        status = 400 if request.method == "POST" else 200
        return TemplateResponse(request, "operators/ask.html", context, status=status)


def _note_member(request: HttpRequest, what: str, member: Membership, details: dict[str, Any]) -> None:
    record(
        what, actor=operator(_user(request)), tenant=member.tenant, on=member, name=member.user.email, details=details
    )
    if what == "member.added":
        tell(tenant_id=member.tenant_id, kind="member.joined", data=joined(member, "operator"))


admin.site.unregister(Membership)


@admin.register(Membership)
class MembershipAdmin(plain.MembershipAdmin):
    def save_model(self, request: HttpRequest, obj: Membership, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        details = {name: str(form.cleaned_data[name]) for name in form.changed_data if name in ("role", "user")}
        _note_member(request, "member.changed" if change else "member.added", obj, details)

    def delete_model(self, request: HttpRequest, obj: Membership) -> None:
        _note_member(request, "member.removed", obj, {})
        super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Membership]) -> None:
        for member in queryset.select_related("tenant", "user"):
            _note_member(request, "member.removed", member, {})
        super().delete_queryset(request, queryset)


@admin.register(SiteSettings)
class SiteSettingsAdmin(ModelAdmin):
    """One row, so its list is its form."""

    form = SiteSettingsForm
    fields = ("name", "smtp_url", "mail_from", "no_mail")
    actions_submit_line = ("save_and_test",)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        SiteSettings.objects.get_or_create(pk=1)
        return self.changeform_view(request, "1", "", extra_context)

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> SiteSettings:
        super().save_form(request, form, change)
        return SiteSettings.objects.get(pk=1)

    def save_model(self, request: HttpRequest, obj: SiteSettings, form: Any, change: bool) -> None:
        data = form.cleaned_data
        url = "" if data["no_mail"] else data["smtp_url"] or None
        saved = save_settings(
            actor=operator(_user(request)), name=data["name"], smtp_url=url, mail_from=data["mail_from"]
        )
        obj.__dict__.update(saved.__dict__)
        super().save_model(request, obj, form, change)  # the theme runs the buttons beside "Save" there

    @action(description="Save and send me a test mail")
    def save_and_test(self, request: HttpRequest, obj: SiteSettings) -> None:
        # A mail server may take its time, in which nobody else could write.
        transaction.on_commit(lambda: self._test(request))

    def _test(self, request: HttpRequest) -> None:
        try:
            send_test_mail(to=_user(request).email)
        except (BadInput, NotSent) as problem:
            self.message_user(request, f"No test mail: {problem}", messages.ERROR)
        else:
            self.message_user(request, f"A test mail is on its way to {_user(request).email}.", messages.SUCCESS)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: SiteSettings | None = None) -> bool:
        return False
