"""Thumbs: one of each person for each answer; admins see what they are told they see, and nothing more."""

from __future__ import annotations

import csv
import io
import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry
from chatapp.chat.conversations import delete
from chatapp.chat.models import Conversation, Message
from chatapp.chat.services import ask
from chatapp.data.retention import purge_conversations
from chatapp.errors import Forbidden, NotFound
from chatapp.feedback import selectors, services
from chatapp.feedback.models import OF_RATING, Feedback, Reason
from chatapp.feedback.selectors import Filters
from chatapp.prompts.models import SystemPrompt
from chatapp.tenants.access import Access, access_for_user
from chatapp.tenants.models import Role
from chatapp.tenants.services import add_member
from tests.chat.conftest import Team
from tests.moving.conftest import a_chat, logged_in, server, strangers, team, worker

__all__ = ["server", "strangers", "team", "worker"]

pytestmark = pytest.mark.django_db
QUESTION, ANSWER = "When does the vault open?", "At nine."


def answered(access: Access) -> Message:
    """An answer under the team's published prompt."""
    chat = a_chat(access, QUESTION, ANSWER)
    answer = chat.messages.get(role="assistant")
    assistant = SystemPrompt.objects.get(tenant=access.tenant)
    type(answer.generation).objects.filter(pk=answer.generation.pk).update(prompt_version=assistant.published)  # type: ignore[attr-defined]
    return answer


def put(access: Access, message: Message, **body: Any) -> Any:
    address = f"/api/t/acme/messages/{message.pk}/rating"
    return logged_in(access).put(address, {"rating": "down", **body}, content_type="application/json")


def test_a_rating_is_changed_and_taken_back_and_there_is_one_of_each_person(team: Team) -> None:
    answer = answered(team.member)
    assert put(team.member, answer, rating="up").status_code == 200
    told = put(team.member, answer, reasons=["wrong", "slow"], comment=" It is ten. ").json()
    assert (told["rating"], told["reasons"], told["comment"]) == ("down", ["wrong", "slow"], "It is ten.")
    row = Feedback.objects.get()
    assert (row.model, row.version.number, row.assistant.name) == ("m", 1, "Assistant")  # type: ignore[union-attr]
    client = logged_in(team.member)
    notes = client.get(f"/api/t/acme/conversations/{answer.conversation_id}/notes").json()
    assert [(one["message_id"], one["rating"]) for one in notes["ratings"]] == [(str(answer.pk), "down")]
    assert client.delete(f"/api/t/acme/messages/{answer.pk}/rating").status_code == 204
    assert client.delete(f"/api/t/acme/messages/{answer.pk}/rating").status_code == 204
    assert not Feedback.objects.exists()


def test_the_chat_is_seen_only_while_its_reader_includes_it(team: Team) -> None:
    answer = answered(team.member)
    put(team.member, answer, comment="Wrong.")
    row = Feedback.objects.get()
    assert (row.question, row.answer) == ("", "")
    page = logged_in(team.owner).get("/t/acme/admin/feedback").content.decode()
    assert "Wrong." in page
    assert QUESTION not in page
    assert "member@acme.test" not in page, "whose it is nobody is told"
    put(team.member, answer, comment="Wrong.", include=True)
    Message.objects.filter(pk=answer.pk).update(text="CHANGED")
    page = logged_in(team.owner).get("/t/acme/admin/feedback").content.decode()
    assert QUESTION in page
    assert ANSWER in page, "the copy is of the moment"
    delete(access=team.member, conversation_id=answer.conversation_id)
    assert QUESTION not in logged_in(team.owner).get("/t/acme/admin/feedback").content.decode()


def test_with_the_conversation_all_text_goes_and_the_figure_stays(team: Team) -> None:
    answer = answered(team.member)
    put(team.member, answer, reasons=["wrong"], comment="Wrong.", include=True)
    purge_conversations([answer.conversation_id])
    row = Feedback.objects.get()
    assert (row.user, row.message, row.comment, row.question, row.answer) == (None, None, "", "", "")
    assert (row.rating, row.reasons, row.version is not None) == ("down", ["wrong"], True)


def test_only_ones_own_finished_answers_of_this_team_are_rated(team: Team, strangers: Team) -> None:
    """P11."""
    answer = answered(team.member)
    question = Message.objects.get(text=QUESTION)
    assert put(team.member, question).status_code == 404
    assert put(team.owner, answer).status_code == 404
    assert put(strangers.member, answer).status_code == 404
    with pytest.raises(NotFound):
        services.rate(access=strangers.member, message_id=answer.pk, rating="up")
    with pytest.raises(Forbidden):
        services.rate(access=team.key, message_id=answer.pk, rating="up")
    running = ask(access=team.member, text="Why?")
    with pytest.raises(NotFound):
        services.rate(access=team.member, message_id=running.message_id, rating="up")
    said = Conversation.objects.create(tenant=team.tenant, user=team.member.user, title="imported")
    elsewhere = Message.objects.create(conversation=said, role="assistant", text="x")
    assert put(team.member, elsewhere).status_code == 404, "what another program said is not the team's"
    assert not Feedback.objects.exists()


@pytest.mark.parametrize(
    "body",
    [
        {"rating": "meh"}, {"reasons": ["clear"]}, {"reasons": ["nonsense"]}, {"comment": "x" * 2001},
        {"rating": "up", "reasons": ["wrong"]},
    ],
)  # fmt: skip
def test_a_rating_that_is_none_is_refused(team: Team, body: Any) -> None:
    assert put(team.member, answered(team.member), **body).status_code == 400
    assert not Feedback.objects.exists()


@pytest.mark.parametrize("role", list(Role))
def test_owners_and_admins_read_it_and_no_other_role_does(team: Team, role: Role) -> None:
    user = User.objects.create_user("x@acme.test", "a password")
    add_member(tenant=team.tenant, user=user, role=role)
    reader = access_for_user(user, "acme")
    allowed = role in (Role.OWNER, Role.ADMIN)
    assert logged_in(reader).get("/t/acme/admin/feedback").status_code == (200 if allowed else 403)
    assert logged_in(reader).get("/api/t/acme/feedback").status_code == (200 if allowed else 403)


def many(team: Team, count: int) -> None:
    assistant = SystemPrompt.objects.get(tenant=team.tenant)
    now = timezone.now()
    Feedback.objects.bulk_create(
        Feedback(
            tenant=team.tenant, rating="up" if n % 4 else "down", model="m", assistant=assistant,
            version=assistant.published, comment=f"=comment {n}" if n == 1 else "",
            created_at=now - timedelta(minutes=n),
        )
        for n in range(count)
    )  # fmt: skip


def test_ten_thousand_rows_come_in_pages_with_their_counts(team: Team, strangers: Team) -> None:
    many(team, 10_000)
    many(strangers, 3)
    begin = time.monotonic()
    first = selectors.page(team.owner, Filters(), limit=50)
    (group,) = selectors.groups(team.owner, Filters())
    assert time.monotonic() - begin < 1.0
    assert (group.assistant, group.number, group.up, group.down, group.share) == ("Assistant", 1, 7500, 2500, 75)
    second = selectors.page(team.owner, Filters(), first.next or "", 50)
    assert len({row.pk for row in first.items + second.items}) == 100
    reply = logged_in(team.owner).get("/t/acme/admin/feedback")
    assert "Older" in reply.content.decode()
    assert "7,500" in reply.content.decode()


def test_the_sums_count_also_the_versions_beyond_those_that_are_listed(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(team, 8)
    Feedback.objects.filter(rating="down").update(version=None)
    monkeypatch.setattr(selectors, "MOST_GROUPS", 1)
    assert [(group.up, group.down) for group in selectors.groups(team.owner, Filters())] == [(6, 0)]
    assert selectors.totals(team.owner, Filters()) == {"up": 6, "down": 2}
    page = logged_in(team.owner).get("/t/acme/admin/feedback")
    assert (page.context["up"], page.context["down"]) == (6, 2)


def test_filters_narrow_the_page_the_counts_and_the_file(team: Team) -> None:
    many(team, 8)
    client = logged_in(team.owner)
    told = client.get("/api/t/acme/feedback?rating=down").json()
    assert ({one["rating"] for one in told["items"]}, told["groups"][0]["up"]) == ({"down"}, 0)
    assert len(client.get("/api/t/acme/feedback?said=true").json()["items"]) == 1
    other = SystemPrompt.objects.create(tenant=team.tenant, name="Other", slug="other")
    assert client.get(f"/api/t/acme/feedback?assistant_id={other.pk}").json()["items"] == []
    page = client.get(f"/t/acme/admin/feedback?assistant={other.pk}")
    assert "Nothing was said like that" in page.content.decode()
    assert client.get("/t/acme/admin/feedback?since=2026-05-02&until=2026-05-01").status_code == 400
    assert client.get("/t/acme/admin/feedback?assistant=x").status_code == 400
    assert client.get("/t/acme/admin/feedback?cursor=x").status_code == 400
    file = client.get("/t/acme/admin/feedback/export?rating=up")
    rows = list(csv.DictReader(io.StringIO(file.getvalue().decode("utf-8-sig"))))
    assert len(rows) == 6
    assert "'=comment 1" in {row["comment"] for row in rows}, "no spreadsheet computes it"
    assert AuditEntry.objects.filter(action="feedback.exported").exists()


def test_a_team_that_nobody_has_told_anything_is_told_how_feedback_comes(team: Team) -> None:
    assert "Nobody has rated an answer yet" in logged_in(team.owner).get("/t/acme/admin/feedback").content.decode()


def test_the_page_knows_the_reasons_that_the_server_knows_in_the_same_words() -> None:
    script = (Path(__file__).parents[2] / "static" / "js" / "feedback.js").read_text()
    shown = dict(re.findall(r'\["(\w+)", gettext\("([^"]+)"\)\]', script))
    assert shown == {reason.value: str(reason.label) for reason in Reason}
    for rating, reasons in OF_RATING.items():
        part = script.partition(f"  {rating}: () => [")[2].partition("],\n")[0]
        assert re.match(rf'\s*\["{reasons[0]}"', part)
