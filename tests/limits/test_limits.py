"""Which limits hold for whom, and how they get to the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from chatapp.chat import services
from chatapp.errors import BadInput
from chatapp.limits import selectors
from chatapp.limits.models import LowerLimits, Plan, TenantLimits
from chatapp.limits.selectors import ensure, limits_of, limits_of_team
from chatapp.tenants.models import Tenant
from engine import protocol
from tests.chat.conftest import Team
from tests.limits.conftest import Allow

pytestmark = pytest.mark.django_db


def test_a_new_tenant_has_the_default_plan(team: Team) -> None:
    tenant = Tenant.objects.create(slug="new", name="New")
    limits = limits_of_team(tenant)
    assert (limits.output_tokens, limits.queue_length, limits.weight, limits.kv_share) == (4096, 512, 1.0, 1.0)
    assert TenantLimits.objects.get(tenant=tenant).plan.is_default


def test_an_override_goes_before_the_plan_and_nothing_is_no_limit(team: Team, allow: Allow) -> None:
    row = allow(output_tokens=500, weight=2.0)
    assert limits_of(team.member).said() == {"output_tokens": 500, "weight": 2.0}
    row.output_tokens = 900
    row.kv_share = 0.25
    row.save()
    limits = limits_of(team.member)
    assert (limits.output_tokens, limits.weight, limits.kv_share) == (900, 2.0, 0.25)
    row.output_tokens = None
    row.save()
    row.plan.output_tokens = None
    row.plan.save()
    assert limits_of(team.member).output_tokens == 1_000_000
    assert limits_of(team.member).unsaid_output == 4096, "nobody reserves a million without having asked for it"


def test_lower_limits_are_a_persons_own_or_everybodys_and_never_higher_than_the_teams(
    team: Team, allow: Allow, lower: Callable[..., LowerLimits]
) -> None:
    allow(output_tokens=1000, requests_per_minute=10)
    lower(output_tokens=300, requests_per_minute=5)
    lower(user=team.member.user, output_tokens=600, context_tokens=50)
    lower(key=team.key.key, output_tokens=5000)
    member, owner, key = (limits_of(access) for access in (team.member, team.owner, team.key))
    assert (member.output_tokens, member.own.requests_per_minute, member.context_tokens) == (600, 5, 50)
    assert (owner.output_tokens, owner.own.requests_per_minute, owner.context_tokens) == (300, 5, None)
    assert (key.output_tokens, key.own.requests_per_minute) == (1000, None), "the default is for people"


def test_another_teams_lower_limits_are_not_seen(team: Team, strangers: Team, lower: Any) -> None:
    """P11: the same person in two teams."""
    LowerLimits.objects.create(tenant=strangers.tenant, output_tokens=1)
    LowerLimits.objects.create(tenant=strangers.tenant, user=team.member.user, output_tokens=1)
    assert limits_of(team.member).output_tokens == 4096


def test_limits_cost_one_query_every_other_second(team: Team, lower: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lower(output_tokens=300)
    lower(user=team.member.user, output_tokens=600)
    now = [1000.0]
    monkeypatch.setattr(selectors.time, "monotonic", lambda: now[0])
    ensure(team.tenant)
    for access in (team.member, team.key):
        with CaptureQueriesContext(connection) as queries:
            for _ in range(3):
                limits_of(access)
        assert len(queries) == 1
    # As if another process had changed it: this one hears of it two seconds later at most.
    LowerLimits.objects.filter(user=team.member.user).update(output_tokens=500)
    assert limits_of(team.member).output_tokens == 600
    now[0] += 2
    assert limits_of(team.member).output_tokens == 500


def test_the_engine_gets_weight_share_and_the_longest_prompt_with_the_request(team: Team, allow: Allow) -> None:
    allow(weight=3.0, kv_share=0.5, context_tokens=100)
    generation = services.ask(access=team.member, text="Hi")
    request = protocol.decode_request(bytes(generation.request or b""))
    assert (request.weight, request.kv_share, request.max_prompt_tokens) == (3.0, 0.5, 100)
    allow(weight=1.0, kv_share=None, context_tokens=None)
    generation = services.ask(access=team.member, text="Hi")
    request = protocol.decode_request(bytes(generation.request or b""))
    assert (request.weight, request.kv_share, request.max_prompt_tokens) == (1.0, 1.0, 0), "at once"


def test_a_longer_answer_than_allowed_is_refused_with_whose_limit_it_is(team: Team, allow: Allow, lower: Any) -> None:
    allow(output_tokens=100)
    messages = [{"role": "user", "content": "Hi"}]
    with pytest.raises(BadInput, match="max_tokens is 101; your team's limit is 100"):
        services.complete(access=team.key, messages=messages, params={"max_tokens": 101})
    lower(key=team.key.key, output_tokens=50)
    with pytest.raises(BadInput, match="max_tokens is 51; your limit is 50"):
        services.complete(access=team.key, messages=messages, params={"max_tokens": 51})


def test_the_database_refuses_what_makes_no_sense(team: Team) -> None:
    plan = ensure(team.tenant).plan
    for wrong in (
        lambda: Plan.objects.create(name="Two defaults", is_default=True),
        lambda: Plan.objects.create(name="None at all", requests_per_minute=0),
        lambda: Plan.objects.create(name="Too much", kv_share=1.5),
        lambda: Plan.objects.create(name=plan.name),
        lambda: LowerLimits.objects.create(tenant=team.tenant, user=team.member.user, key=team.key.key),
        lambda: [LowerLimits.objects.create(tenant=team.tenant) for _ in range(2)],
        lambda: [LowerLimits.objects.create(tenant=team.tenant, user=team.owner.user) for _ in range(2)],
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            wrong()
