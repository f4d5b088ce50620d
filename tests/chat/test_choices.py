"""What a person chooses about how a conversation is answered holds there, within the limits of the day."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from chatapp.chat import conversations, services
from chatapp.chat.models import Conversation, Generation
from chatapp.errors import BadInput, NotFound
from chatapp.limits.selectors import ensure
from chatapp.tenants.access import Access
from engine import protocol
from tests.chat.conftest import ScriptedWorker, Team

pytestmark = pytest.mark.django_db


def sampled(generation: Generation) -> protocol.SamplingParams:
    assert generation.request is not None
    return protocol.decode_request(bytes(generation.request)).params


def shorten(team: Team) -> None:
    row = ensure(team.tenant)
    row.output_tokens = 100
    row.save()


def test_what_a_new_chat_was_asked_with_holds_for_what_follows(team: Team, worker: ScriptedWorker) -> None:
    first = services.ask(access=team.member, text="Hi", params={"temperature": 0.9, "max_tokens": 40, "n": 1})
    assert first.conversation is not None
    assert first.conversation.params == {"temperature": 0.9, "max_tokens": 40}
    worker.answer("All right.")
    second = services.ask(access=team.member, text="And?", conversation_id=first.conversation_id)
    assert (sampled(second).temperature, sampled(second).max_tokens) == (0.9, 40)
    worker.answer("All right.")
    once = services.ask(
        access=team.member, text="Now?", conversation_id=first.conversation_id, params={"temperature": 0.1}
    )
    assert (sampled(once).temperature, sampled(once).max_tokens) == (0.1, 40)
    worker.answer("All right.")
    assert once.message is not None
    question = once.message.parent_id
    again = services.answer_again(access=team.member, conversation_id=first.conversation_id, question_id=question)
    assert sampled(again).temperature == 0.9, "what one question said is not kept"


def test_a_choice_replaces_what_was_chosen_before(team: Team, worker: ScriptedWorker, client: Client) -> None:
    first = services.ask(access=team.member, text="Hi", params={"temperature": 0.9})
    worker.answer("All right.")
    client.force_login(team.member.user)
    path = f"/api/t/{team.tenant.slug}/conversations/{first.conversation_id}"
    body = {"params": {"top_p": 0.5, "seed": 7, "stop": ["END"], "temperature": None}}
    assert client.patch(path, body, content_type="application/json").status_code == 200
    assert client.get(path).json()["params"] == {"top_p": 0.5, "seed": 7, "stop": ["END"]}
    second = services.ask(access=team.member, text="And?", conversation_id=first.conversation_id)
    assert (sampled(second).temperature, sampled(second).top_p, sampled(second).seed) == (0.3, 0.5, 7)


def test_limits_that_were_lowered_since_cut_what_was_chosen(team: Team, worker: ScriptedWorker) -> None:
    first = services.ask(access=team.member, text="Hi", params={"max_tokens": 400})
    worker.answer("All right.")
    shorten(team)
    second = services.ask(access=team.member, text="And?", conversation_id=first.conversation_id)
    assert sampled(second).max_tokens == 100


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"temperature": 3}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"logit_bias": {"1": 2}}, "params.logit_bias"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"seed": 1.5}, "seed"),
    ],
)
def test_a_choice_that_could_not_be_asked_with_is_refused_by_its_field(
    team: Team, worker: ScriptedWorker, params: dict[str, Any], field: str
) -> None:
    first = services.ask(access=team.member, text="Hi")
    with pytest.raises(BadInput) as refused:
        conversations.choose(access=team.member, conversation_id=first.conversation_id, params=params)
    assert refused.value.param == field
    assert Conversation.objects.get(pk=first.conversation_id).params == {}


def test_what_is_not_chosen_stays_as_a_question_has_just_made_it(
    team: Team, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = services.ask(access=team.member, text="Hi")
    row = Conversation.objects.filter(pk=first.conversation_id)

    def meanwhile(access: Access, params: dict[str, Any]) -> dict[str, Any]:
        row.update(model="just chosen")
        return params

    monkeypatch.setattr(conversations.choices, "chosen", meanwhile)
    conversations.choose(access=team.member, conversation_id=first.conversation_id, params={"temperature": 1})
    assert row.values_list("model", "params").get() == ("just chosen", {"temperature": 1})


def test_nobody_chooses_for_another_and_no_model_that_the_team_may_not_use(team: Team, strangers: Team) -> None:
    mine = services.ask(access=team.member, text="Hi").conversation_id
    with pytest.raises(NotFound):
        conversations.choose(access=strangers.owner, conversation_id=mine, params={"temperature": 1})
    with pytest.raises(NotFound):
        conversations.choose(access=team.member, conversation_id=mine, model="not-ours")


def test_the_page_says_what_may_be_chosen_and_what_holds_otherwise(team: Team, client: Client) -> None:
    shorten(team)
    client.force_login(team.member.user)
    page = client.get(f"/t/{team.tenant.slug}/")
    offered = page.context["page"]["choices"]
    assert offered["params"]["temperature"] == {"least": 0.0, "most": 2.0, "default": 0.3}
    assert offered["params"]["max_tokens"] == {"least": 1, "most": 100, "default": 100}
    assert offered["model"] in offered["models"]
