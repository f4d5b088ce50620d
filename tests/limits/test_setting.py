"""Who sets limits, where, and what the log says of it: pages, the API, and the operators' admin."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry
from chatapp.errors import BadInput, Forbidden, NotFound
from chatapp.limits import services
from chatapp.limits.models import TEAM, LowerLimits, Meter, Plan, TenantLimits
from chatapp.limits.selectors import ensure, limits_of, limits_of_team, month_of, warning
from chatapp.limits.warning import note_use
from chatapp.tenants import keys
from chatapp.tenants.access import Access
from chatapp.tenants.models import Membership, Tenant
from tests.chat.conftest import Team
from tests.limits.conftest import Allow

pytestmark = pytest.mark.django_db
BACKEND = "django.contrib.auth.backends.ModelBackend"


def client_of(access: Any) -> Client:
    client = Client()
    client.force_login(access.user, backend=BACKEND)
    return client


def entries(team: Team) -> list[tuple[str, str, dict[str, Any]]]:
    found = AuditEntry.objects.filter(tenant=team.tenant, action__startswith="limits.").order_by("at", "id")
    return [(entry.action, entry.object_name, entry.details) for entry in found]


def member_id(access: Any) -> Any:
    return Membership.objects.get(user=access.user, tenant=access.tenant).pk


# --- services -----------------------------------------------------------------------------------------------------


def test_what_an_admin_sets_is_in_the_log_with_before_and_after(team: Team) -> None:
    member = member_id(team.member)
    services.set_lower(access=team.owner, member_id=member, values={"output_tokens": 100})
    services.set_lower(access=team.owner, member_id=member, values={"output_tokens": 100})
    services.set_lower(access=team.owner, member_id=member, values={"output_tokens": 200, "concurrent_answers": 1})
    assert limits_of(team.member).output_tokens == 200
    assert services.set_lower(access=team.owner, member_id=member, values={}) is None
    name = team.member.user.email  # type: ignore[union-attr]
    assert entries(team) == [
        ("limits.lowered", name, {"output_tokens": [None, 100]}),
        ("limits.lowered", name, {"output_tokens": [100, 200], "concurrent_answers": [None, 1]}),
        ("limits.removed", name, {"output_tokens": [200, None], "concurrent_answers": [1, None]}),
    ]
    assert not LowerLimits.objects.exists()


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"output_tokens": 5000}, "output_tokens"),
        ({"output_tokens": 0}, "output_tokens"),
        ({"output_tokens": True}, "output_tokens"),
        ({"output_tokens": "100"}, "output_tokens"),
        ({"requests_per_minute": 2**31}, "requests_per_minute"),
        ({"tokens_per_month": 2**53 + 1}, "tokens_per_month"),
        ({"weight": 2}, "weight"),
    ],
)
def test_what_is_no_limit_or_above_the_teams_is_refused(team: Team, values: dict[str, Any], param: str) -> None:
    with pytest.raises(BadInput) as refused:
        services.set_lower(access=team.owner, values=values)
    assert refused.value.param == param
    assert not LowerLimits.objects.exists()


def test_nobody_sets_limits_for_another_team_or_without_the_role(team: Team, strangers: Team) -> None:
    """P11."""
    with pytest.raises(Forbidden):
        services.set_lower(access=team.member, values={"output_tokens": 1})
    with pytest.raises(NotFound):
        services.set_lower(access=team.owner, member_id=member_id(strangers.member), values={"output_tokens": 1})
    with pytest.raises(NotFound):
        services.set_lower(access=team.owner, key_id=strangers.key.key.pk, values={"output_tokens": 1})  # type: ignore[union-attr]
    theirs = services.set_lower(access=strangers.owner, values={"output_tokens": 1})
    assert theirs is not None
    with pytest.raises(NotFound):
        services.remove_lower(access=team.owner, lower_id=theirs.pk)


def test_a_rotated_keys_successor_may_do_no_more(team: Team) -> None:
    """P10. Whoever rotates a limited key means another secret, and not that the limits are gone."""
    old = team.key.key
    assert old is not None
    services.set_lower(access=team.owner, key_id=old.pk, values={"output_tokens": 20, "tokens_per_month": 5000})
    other, _ = keys.create_key(access=team.owner, name="Other", scopes=["chat"])
    new, _ = keys.rotate_key(access=team.owner, key_id=old.pk, overlap="1h")
    for key, output, month in ((old, 20, 5000), (new, 20, 5000), (other, None, None)):
        own = limits_of(Access(tenant=team.tenant, key=key)).own
        assert (own.output_tokens, own.tokens_per_month) == (output, month), key
    services.set_lower(access=team.owner, key_id=new.pk, values={})
    newest, _ = keys.rotate_key(access=team.owner, key_id=new.pk, overlap="0")
    assert limits_of(Access(tenant=team.tenant, key=newest)).own.output_tokens is None
    assert limits_of(Access(tenant=team.tenant, key=old)).own.output_tokens == 20


def test_a_limited_key_that_administers_lifts_no_limits_of_keys(team: Team) -> None:
    minter, _ = keys.create_key(access=team.owner, name="Minter", scopes=["chat", "admin"])
    other, _ = keys.create_key(access=team.owner, name="Other", scopes=["chat"])
    services.set_lower(access=team.owner, key_id=minter.pk, values={"output_tokens": 20})
    as_key = Access(tenant=team.tenant, key=minter)
    made, _ = keys.create_key(access=as_key, name="Made", scopes=["chat"])
    assert limits_of(Access(tenant=team.tenant, key=made)).own.output_tokens == 20
    for key in (minter, made, other):
        for values in ({}, {"output_tokens": 21}, {"requests_per_minute": 1}):
            with pytest.raises(Forbidden) as refused:
                services.set_lower(access=as_key, key_id=key.pk, values=values)
            assert refused.value.param == "output_tokens"
    for row in LowerLimits.objects.filter(key__in=(minter, made)):
        with pytest.raises(Forbidden):
            services.remove_lower(access=as_key, lower_id=row.pk)
    services.set_lower(access=as_key, key_id=other.pk, values={"output_tokens": 20, "requests_per_minute": 1})
    services.set_lower(access=as_key, member_id=member_id(team.member), values={"output_tokens": 50})
    services.set_lower(access=team.owner, key_id=minter.pk, values={})
    assert services.set_lower(access=as_key, key_id=other.pk, values={}) is None, "it is not limited itself any more"


# --- pages --------------------------------------------------------------------------------------------------------


def test_the_page_teaches_when_nothing_is_lowered_and_shows_plan_and_use(team: Team, allow: Allow) -> None:
    row = allow(tokens_per_month=1_000_000, output_tokens=777)
    row.output_tokens = 555
    row.save()
    month = month_of(timezone.now())
    Meter.objects.create(tenant=team.tenant, month=month, subject=TEAM, used=123_456, reserved=1_000)
    page = client_of(team.owner).get("/t/acme/admin/limits").content.decode()
    for text in ("Tried", "123,456 used, 1,000 reserved", "1,000,000", "555", "for this team", "No limit"):
        assert text in page, text
    assert "The team&#x27;s limits hold for everyone" in page or "The team's limits hold for everyone" in page
    assert "of this month's tokens are used" not in page


def test_most_of_a_month_used_shows_on_every_page_of_the_administration_to_those_who_may_know(
    team: Team, allow: Allow
) -> None:
    allow(tokens_per_month=1000)
    Meter.objects.create(tenant=team.tenant, month=month_of(timezone.now()), subject=TEAM, used=810)
    owner = client_of(team.owner)
    for address in ("/t/acme/admin/limits", "/t/acme/admin/audit"):
        assert "81 % of this month&#x27;s tokens are used: 810 of 1,000" in owner.get(address).content.decode()
    Meter.objects.update(used=1000)
    assert "Requests are refused until" in owner.get("/t/acme/admin/audit").content.decode()
    assert "tokens are used" not in client_of(team.member).get("/t/acme/admin/limits").content.decode()


def test_the_form_sets_shows_changes_and_removes(team: Team) -> None:
    owner = client_of(team.owner)
    email = team.member.user.email  # type: ignore[union-attr]
    address = "/t/acme/admin/limits/lower"
    reply = owner.post(address, {"who": email.upper(), "output_tokens": "300"}, follow=True)
    assert f"Limits for {email.upper()} are set" in reply.content.decode()
    assert "300 tokens in an answer" in reply.content.decode()
    assert 'value="300"' in owner.get(f"{address}?who={email}").content.decode()
    reply = owner.post(address, {"who": team.key.key.prefix, "concurrent_answers": "2"}, follow=True)  # type: ignore[union-attr]
    assert "2 answers at once" in reply.content.decode()
    owner.post(address, {"who": "", "requests_per_minute": "9"})
    assert 'value="9"' in owner.get(address).content.decode()
    assert limits_of(team.member).own.requests_per_minute == 9
    assert LowerLimits.objects.count() == 3
    for row in LowerLimits.objects.all():
        assert owner.post(f"/t/acme/admin/limits/lower/{row.pk}/remove").status_code == 302
        assert owner.post(f"/t/acme/admin/limits/lower/{row.pk}/remove").status_code == 404
    assert not LowerLimits.objects.exists()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"who": "nobody@acme.test", "output_tokens": "3"}, "no person with this address"),
        ({"who": "owner@other.test", "output_tokens": "3"}, "no person with this address"),
        ({"who": "octv_", "output_tokens": "3"}, "no person with this address"),
        ({"who": "\U0001f469\u200d\U0001f467 ' or 1=1", "output_tokens": "3"}, "no person with this address"),
        ({"output_tokens": "9999"}, "The team itself may have 4,096"),
        ({"output_tokens": "many"}, "Enter a whole number"),
        ({"output_tokens": "-1"}, "greater than or equal to 1"),
        ({"requests_per_minute": "99999999999"}, "must be a whole number from 1 to"),
    ],
)
def test_bad_input_is_said_at_its_field_and_kept(team: Team, strangers: Team, sent: dict[str, str], said: str) -> None:
    reply = client_of(team.owner).post("/t/acme/admin/limits/lower", sent)
    page = reply.content.decode()
    assert reply.status_code == 400
    assert said in page
    assert all(f'value="{escape(value, quote=True)}"' in page for value in sent.values())
    assert not LowerLimits.objects.exists()


def test_a_form_sent_twice_sets_once(team: Team) -> None:
    owner = client_of(team.owner)
    form = {"who": "", "output_tokens": "300", "once": "the-same"}
    for _ in range(2):
        assert owner.post("/t/acme/admin/limits/lower", form).status_code == 302
    assert len(entries(team)) == 1


def test_many_people_with_limits_come_in_pages(team: Team) -> None:
    people = User.objects.bulk_create([User(email=f"p{n:03}@acme.test") for n in range(120)])
    Membership.objects.bulk_create([Membership(tenant=team.tenant, user=user, role="member") for user in people])
    LowerLimits.objects.bulk_create([LowerLimits(tenant=team.tenant, user=u, output_tokens=9) for u in people])
    owner = client_of(team.owner)
    first = owner.get("/t/acme/admin/limits").content.decode()
    assert ("p000@acme.test" in first, "p060@acme.test" in first, "Page 1 of 3" in first) == (True, False, True)
    assert "p119@acme.test" in owner.get("/t/acme/admin/limits?page=3").content.decode()
    for odd in ("0", "-1", "x", "99999"):
        assert owner.get(f"/t/acme/admin/limits?page={odd}").status_code == 200


# --- the API ------------------------------------------------------------------------------------------------------


def test_the_api_does_what_the_pages_do(team: Team, allow: Allow) -> None:
    allow(output_tokens=500, tokens_per_month=1000)
    owner = client_of(team.owner)
    told = owner.get("/api/t/acme/limits").json()
    by_name = {use["name"]: use for use in told["limits"]}
    assert told["plan"] == "Tried"
    assert (by_name["output_tokens"]["limit"], by_name["output_tokens"]["override"]) == (500, False)
    assert (by_name["tokens_per_month"]["used"], by_name["tokens_per_month"]["percent"]) == (0, 0)
    assert by_name["tokens_per_month"]["resets_at"].endswith("-01T00:00:00Z")
    member = str(member_id(team.member))

    def put(**body: Any) -> Any:
        return owner.put("/api/t/acme/limits/lower", body, content_type="application/json")

    made = put(member_id=member, output_tokens=20).json()["limits"]
    assert (made["member_id"], made["output_tokens"]) == (member, 20)
    put(output_tokens=400)
    put(key_id=str(team.key.key.pk), output_tokens=30)  # type: ignore[union-attr]
    items = owner.get("/api/t/acme/limits/lower").json()["items"]
    assert [item["output_tokens"] for item in items] == [400, 20, 30]
    cut = owner.get("/api/t/acme/limits/lower?limit=1").json()
    rest = owner.get("/api/t/acme/limits/lower", {"limit": 1, "cursor": cut["next"]}).json() if cut["next"] else {}
    assert cut["items"] + rest.get("items", []) == owner.get("/api/t/acme/limits/lower").json()["items"]
    too_high = put(output_tokens=501)
    assert (too_high.status_code, too_high.json()["error"]["param"]) == (400, "output_tokens")
    both = put(member_id=member, key_id=str(team.key.key.pk))  # type: ignore[union-attr]
    assert (both.status_code, both.json()["error"]["param"]) == (400, "key_id")
    assert put(output_tokens="many").status_code == 400
    assert put(member_id="no-id").status_code == 400
    assert put(member_id=member).json() == {"limits": None}
    assert owner.delete(f"/api/t/acme/limits/lower/{items[0]['id']}").status_code == 204
    assert owner.delete(f"/api/t/acme/limits/lower/{items[0]['id']}").status_code == 404
    assert LowerLimits.objects.count() == 1


# --- operators ----------------------------------------------------------------------------------------------------


@pytest.fixture
def operator(db: None) -> Client:
    client = Client()
    user = User.objects.create_superuser("operator@octavo.test", "a password")
    client.force_login(user, backend=BACKEND)
    return client


def test_an_operator_makes_a_plan_gives_it_to_a_team_and_both_logs_say_so(operator: Client, team: Team) -> None:
    ensure(team.tenant)
    reply = operator.post(reverse("admin:limits_plan_add"), {"name": "Gold", "tokens_per_month": "5000"})
    assert reply.status_code == 302, reply.content.decode()
    gold = Plan.objects.get(name="Gold")
    address = reverse("admin:limits_tenantlimits_change", args=[team.tenant.pk])
    reply = operator.post(address, {"plan": str(gold.pk), "output_tokens": "256", "weight": "2.5"})
    assert reply.status_code == 302, reply.content.decode()
    limits = limits_of_team(team.tenant)
    assert (limits.team.tokens_per_month, limits.output_tokens, limits.weight) == (5000, 256, 2.5)
    reply = operator.post(
        reverse("admin:limits_plan_change", args=[gold.pk]), {"name": "Gold", "tokens_per_month": "9"}
    )
    assert reply.status_code == 302
    assert limits_of_team(team.tenant).team.tokens_per_month == 9, "from the next request on"
    assert [(action, details) for action, _, details in entries(team)] == [
        ("limits.changed", {"plan": ["Standard", "Gold"], "output_tokens": [None, 256], "weight": [None, 2.5]}),
        ("limits.changed", {"tokens_per_month": [5000, 9]}),
    ]
    assert set(AuditEntry.objects.filter(tenant=None).values_list("action", flat=True)) == {
        "plan.created",
        "plan.changed",
    }
    assert set(AuditEntry.objects.values_list("actor_kind", flat=True)) == {"operator"}


@pytest.mark.parametrize("whole_plan", [False, True], ids=["override", "plan"])
def test_once_an_operator_gives_more_nobody_is_told_that_all_is_used(
    operator: Client, team: Team, allow: Allow, whole_plan: bool
) -> None:
    row = allow(tokens_per_month=1000)
    month = month_of(timezone.now())
    meter = Meter.objects.create(tenant=team.tenant, month=month, subject=TEAM, used=1000)

    def give(tokens: int) -> None:
        name, key = ("plan", row.plan.pk) if whole_plan else ("tenantlimits", row.pk)
        form = {"name": "Tried"} if whole_plan else {"plan": str(row.plan.pk)}
        reply = operator.post(
            reverse(f"admin:limits_{name}_change", args=[key]), {**form, "tokens_per_month": str(tokens)}
        )
        assert reply.status_code == 302, reply.content.decode()

    def told() -> list[int]:
        return [details["percent"] for action, _, details in entries(team) if action == "limits.warning"]

    note_use(team.tenant, month)
    assert "Requests are refused until" in client_of(team.owner).get("/t/acme/admin/limits").content.decode()
    give(10_000)
    assert warning(team.tenant) is None
    assert "tokens are used" not in client_of(team.owner).get("/t/acme/admin/limits").content.decode()
    for used, percents in ((7_900, [100]), (8_000, [100, 80]), (9_999, [100, 80]), (10_000, [100, 80, 100])):
        Meter.objects.filter(pk=meter.pk).update(used=used)
        note_use(team.tenant, month)
        assert told() == percents
    give(12_000)
    assert warning(team.tenant) == (83, 10_000, 12_000)
    note_use(team.tenant, month)
    assert told() == [100, 80, 100], "of 80 % they know"
    give(10_000)
    note_use(team.tenant, month)
    assert told() == [100, 80, 100, 100]


def test_an_operator_cannot_save_what_makes_no_sense(operator: Client, team: Team) -> None:
    taken = ensure(team.tenant).plan.name
    for wrong in ({"kv_share": "1.5"}, {"weight": "0"}, {"tokens_per_month": "0"}, {"name": taken}):
        reply = operator.post(reverse("admin:limits_plan_add"), {"name": "New", **wrong})
        assert reply.status_code == 200
        assert "errornote" in reply.content.decode() or "error" in reply.content.decode().lower()
    assert not Plan.objects.filter(name="New").exists()


def test_one_plan_is_the_default_and_can_be_another(operator: Client) -> None:
    plan = Plan.objects.create(name="New default")
    action = {"action": "make_default", "_selected_action": [str(plan.pk)]}
    operator.post(reverse("admin:limits_plan_changelist"), action)
    assert [p.name for p in Plan.objects.filter(is_default=True)] == ["New default"]
    tenant = Tenant.objects.create(slug="later", name="Later")
    assert ensure(tenant).plan == plan
    assert operator.post(reverse("admin:limits_plan_delete", args=[plan.pk]), {"post": "yes"}).status_code == 403


def test_the_operators_list_has_every_team(operator: Client, team: Team) -> None:
    Tenant.objects.create(slug="unseen", name="Unseen")
    assert "Unseen" in operator.get(reverse("admin:limits_tenantlimits_changelist")).content.decode()
    assert TenantLimits.objects.filter(tenant__slug="unseen").exists()


def test_limits_go_with_their_team(team: Team, lower: Callable[..., Any], allow: Allow) -> None:
    allow(tokens_per_month=1000)
    lower(output_tokens=5)
    team.tenant.delete()
    assert not TenantLimits.objects.exists()
    assert not LowerLimits.objects.exists()
