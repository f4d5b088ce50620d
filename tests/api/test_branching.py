"""The tree of a conversation over the websocket: edit, answer again, go on; and what does not go together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from chatapp.chat.models import Message
from tests.api.sockets import Line, Voice, line, ui_line, voice
from tests.chat.conftest import Team, record, server, strangers, team

__all__ = ["record", "server", "strangers", "team", "voice"]
pytestmark = pytest.mark.django_db(transaction=True)


async def answered(socket: Line, voice: Voice, text: str, reason: str = "stop", **frame: Any) -> dict[str, Any]:
    queued = await socket.create(**frame)
    voice.answer(text, finish_reason=reason)
    end = (await socket.ended(queued["response_id"]))[-1]
    assert end["message_id"] == queued["message_id"]
    return queued


async def test_a_browser_edits_answers_again_and_goes_on(team: Team, voice: Voice, record: Callable[[], int]) -> None:
    async with ui_line(team.member.user, "acme") as socket:
        first = await answered(socket, voice, "Once ", "length", input="Tell")
        where = {"conversation_id": first["conversation_id"]}
        rest = await answered(socket, voice, "upon a time", continue_id=first["message_id"], **where)
        assert rest["parent_id"] == first["message_id"]
        again = await answered(socket, voice, "No", question_id=first["parent_id"], **where)
        assert again["parent_id"] == first["parent_id"]
        edited = await answered(socket, voice, "Yes", input="Sing", parent_id="root", **where)
        await asyncio.to_thread(record)

        def kept() -> dict[str, tuple[str | None, str]]:
            rows = Message.objects.filter(conversation=first["conversation_id"])
            return {str(row.pk): (str(row.parent_id) if row.parent_id else None, row.text) for row in rows}

        assert await asyncio.to_thread(kept) == {
            first["parent_id"]: (None, "Tell"),
            first["message_id"]: (first["parent_id"], "Once "),
            rest["message_id"]: (first["message_id"], "upon a time"),
            again["message_id"]: (first["parent_id"], "No"),
            edited["parent_id"]: (None, "Sing"),
            edited["message_id"]: (edited["parent_id"], "Yes"),
        }


async def test_what_does_not_go_together_is_refused_by_name(team: Team, voice: Voice) -> None:
    async with line(team.secret) as socket:
        first = await answered(socket, voice, "Once ", "length", input="Tell")
        where = {"conversation_id": first["conversation_id"]}
        question, answer = {"question_id": first["parent_id"]}, {"continue_id": first["message_id"]}
        message = [{"role": "user", "content": "x"}]
        for frame, param in [
            ({**where, **question, **answer}, "continue_id"),
            (question, "conversation_id"),
            (answer, "conversation_id"),
            ({**where, **question, "input": "x"}, "input"),
            ({**where, **answer, "input": message}, "input"),
            ({**where, **question, "parent_id": first["message_id"]}, "parent_id"),
            ({**where, **answer, "file_ids": ["file-1"]}, "file_ids"),
            ({**where, **answer, "tools": [{"type": "function"}]}, "tools"),
            ({**where, **question, "assistant_id": "a"}, "assistant_id"),
            ({**where, "question_id": first["message_id"]}, "question_id"),
            ({**where, "continue_id": first["parent_id"]}, "continue_id"),
        ]:
            await socket.send(type="response.create", event_id="e", **frame)
            error = await socket.read()
            assert (error["type"], error.get("param"), error["event_id"]) == ("error", param, "e"), error
            assert not error["retryable"]
