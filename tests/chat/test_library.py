"""What people do with their chats beside asking: archive, tag, change several; and what is told of it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.utils import timezone

from chatapp.chat import changes, conversations, selectors, tags
from chatapp.chat.models import Conversation, Tag, TitledBy
from chatapp.chat.selectors import Filters
from chatapp.chat.text import title
from chatapp.errors import BadInput, NotFound
from chatapp.tenants.access import Access
from tests.chat.conftest import Team

BIDI = "".join(map(chr, (0x202E, 0x2066, 0x200F, 0x061C)))


def chat(access: Access, name: str = "A chat", **fields: Any) -> Conversation:
    owner = {"user": access.user} if access.user is not None else {"key": access.key}
    return Conversation.objects.create(tenant=access.tenant, title=name, **owner, **fields)


def tagged(of: Conversation) -> list[str]:
    return [tag.name for tag in Tag.objects.filter(conversation=of)]


def listed(access: Access, **filters: Any) -> list[str]:
    return sorted(one.title for one in selectors.conversations(access, filters=Filters(**filters)).items)


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("# How do **caches** work?", "How do caches work?"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("> quoted\nmore", "quoted"),
        ("- [ ] `buy` milk", "[ ] buy milk"),
        ("See [the page](https://example.org/a) and ![a picture](x.png)", "See the page and a picture"),
        ("What is 2*3*4, and a_b_c?", "What is 2*3*4, and a_b_c?"),
        ("---\n***\n\n  Then   words \t here", "Then words here"),
        (f"{BIDI}turned{BIDI} round\x07", "turned round"),
        ("1. First\n2. Second", "First"),
        ("**", "New chat"),
        ("???", "???"),
        ("😀", "😀"),
        ("1984", "1984"),
        ("* " * 50_000 + "end", "New chat"),
        ("a" * 50_000, "a" * 60 + "…"),
        ("word " * 50, ("word " * 12).strip() + "…"),
        ("مرحبا كيف الحال", "مرحبا كيف الحال"),
    ],
)
def test_a_chat_is_called_by_its_first_words_as_they_read(text: str, called: str) -> None:
    assert title(text) == called


def test_what_is_archived_is_out_of_the_list_and_comes_back_where_it_was(team: Team) -> None:
    one, _ = chat(team.member, "One"), chat(team.member, "Two")
    before = one.updated_at
    for _ in range(2):
        conversations.set_archived(access=team.member, conversation_id=one.pk, archived=True)
    assert listed(team.member) == ["Two"]
    assert listed(team.member, archived=True) == ["One"]
    assert selectors.conversation(team.member, one.pk).title == "One", "its address works"
    for _ in range(2):
        conversations.set_archived(access=team.member, conversation_id=one.pk, archived=False)
    assert listed(team.member) == ["One", "Two"]
    one.refresh_from_db()
    assert one.updated_at == before
    conversations.set_archived(access=team.member, conversation_id=one.pk, archived=True)
    conversations.delete(access=team.member, conversation_id=one.pk)
    assert listed(team.member, deleted=True) == ["One"], "archived or not"
    assert listed(team.member, archived=True) == []


def test_a_name_that_a_person_gave_is_known_to_be_theirs(team: Team) -> None:
    one = chat(team.member)
    assert one.titled_by == TitledBy.WORDS
    assert conversations.rename(access=team.member, conversation_id=one.pk, name="Mine").titled_by == TitledBy.PERSON
    one.refresh_from_db()
    assert (one.title, one.titled_by) == ("Mine", TitledBy.PERSON)


def test_tags_are_put_on_and_taken_off_and_case_makes_no_second_one(team: Team) -> None:
    one, two = chat(team.member), chat(team.member)
    tags.set_tags(access=team.member, conversation=one, names=["Work", " to  read ", "#later", "WORK"])
    assert tagged(one) == ["Work", "later", "to read"]
    tags.change_tags(access=team.member, conversation=two, add=["work", "café"], remove=["never there"])
    assert tagged(two) == ["Work", "café"], "as it was spelled first"
    tags.change_tags(access=team.member, conversation=two, remove=["WORK"])
    assert tagged(two) == ["café"]
    tags.set_tags(access=team.member, conversation=one, names=["later"])
    assert selectors.tags(team.member) == [("café", 1), ("later", 1)]
    assert listed(team.member, tag="later") == ["A chat"]


@pytest.mark.parametrize("bad", ["", "  ", "#", "x" * 41, "\u202e", "\0", 7, None])
def test_what_is_no_tag_is_refused_and_changes_nothing(team: Team, bad: Any) -> None:
    one = chat(team.member)
    tags.set_tags(access=team.member, conversation=one, names=["kept"])
    with pytest.raises(BadInput) as refused:
        tags.set_tags(access=team.member, conversation=one, names=["new", bad])
    assert refused.value.param == "tags"
    assert tagged(one) == ["kept"]


def test_what_no_database_takes_is_nobodys_tag(team: Team) -> None:
    tags.set_tags(access=team.member, conversation=chat(team.member), names=["later"])
    assert listed(team.member, tag="\0") == []
    assert listed(team.member, tag="la\0ter") == ["A chat"]


def test_a_conversation_has_twenty_tags_at_most(team: Team) -> None:
    one = chat(team.member)
    tags.set_tags(access=team.member, conversation=one, names=[f"t{n}" for n in range(20)])
    with pytest.raises(BadInput, match="at most 20"):
        tags.change_tags(access=team.member, conversation=one, add=["one more"])
    tags.change_tags(access=team.member, conversation=one, add=["one more", "T3"], remove=["t0"])
    assert len(tagged(one)) == 20


def test_a_tag_is_renamed_everywhere_and_becomes_one_with_another(team: Team) -> None:
    one, two, gone = chat(team.member), chat(team.member), chat(team.member, deleted_at=timezone.now())
    colleague, key = chat(team.owner), chat(team.key)
    for of, names in ((one, ["draft", "x"]), (two, ["draft", "Done"]), (gone, ["draft"])):
        Tag.objects.bulk_create(Tag(conversation=of, name=name) for name in names)
    for of in (colleague, key):
        Tag.objects.create(conversation=of, name="draft")
    assert tags.rename_tag(access=team.member, name="DRAFT", to="done") == 3
    assert (tagged(one), tagged(two), tagged(gone)) == (["Done", "x"], ["Done"], ["Done"])
    assert tagged(colleague) == tagged(key) == ["draft"], "theirs is theirs"
    assert tags.rename_tag(access=team.member, name="done", to="DONE") == 3
    assert tagged(one) == ["DONE", "x"]
    assert tags.remove_tag(access=team.member, name="done") == 3
    assert tagged(one) == ["x"]
    for act in (lambda: tags.remove_tag(access=team.member, name="done"),
                lambda: tags.rename_tag(access=team.member, name="draft", to="x")):  # fmt: skip
        with pytest.raises(NotFound):
            act()


def test_several_are_changed_at_once_and_those_that_are_gone_do_not_stop_the_others(
    team: Team, strangers: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P11: neither a stranger's nor a colleague's is touched, and nothing says that it is there."""
    one, two = chat(team.member, "One"), chat(team.member, "Two")
    foreign = [chat(strangers.member), chat(team.owner)]
    ids = [one.pk, uuid.uuid4(), *(other.pk for other in foreign), two.pk, one.pk]

    def change(**what: Any) -> list[str]:
        made = conversations.change_many(access=team.member, conversation_ids=ids, **what)
        return sorted(found.title for found in made)

    for what in ({"archived": True}, {"starred": True, "archived": False}, {"add_tags": ["a", "b"]}, {"deleted": True}):
        assert change(**what) == ["One", "Two"]
    assert change(archived=True) == [], "they are deleted"
    assert change(deleted=False, remove_tags=["B"]) == ["One", "Two"]
    assert listed(team.member, tag="a", starred=True) == ["One", "Two"]
    assert listed(team.member, tag="b") == []
    for other in foreign:
        other.refresh_from_db()
        assert (other.starred_at, other.archived_at, other.deleted_at, tagged(other)) == (None, None, None, [])
    with pytest.raises(BadInput):
        conversations.change_many(access=team.member, conversation_ids=[uuid.uuid4() for _ in range(101)])


def test_other_tabs_are_told_of_stars_tags_and_the_archive(
    team: Team, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(changes.topics, "tell", lambda tenant, principal, what: heard.append(what))
    with django_capture_on_commit_callbacks(execute=True):
        one = chat(team.member)

    def told(act: Any) -> dict[str, Any]:
        heard.clear()
        with django_capture_on_commit_callbacks(execute=True):
            act()
        assert len(heard) == 1, heard
        return dict(heard[0]["conversation"])

    named: dict[str, Any] = {"access": team.member, "conversation_id": one.pk}
    assert told(lambda: conversations.set_starred(**named, starred=True))["starred_at"]
    assert told(lambda: conversations.set_archived(**named, archived=True))["archived_at"]
    found = told(lambda: tags.set_tags(access=team.member, conversation=one, names=["b", "a"]))
    assert found["tags"] == ["a", "b"]
    assert told(lambda: tags.rename_tag(access=team.member, name="a", to="c"))["tags"] == ["b", "c"]
    assert told(lambda: tags.remove_tag(access=team.member, name="b"))["tags"] == ["c"]
    assert told(lambda: conversations.rename(**named, name="Called"))["title"] == "Called"
