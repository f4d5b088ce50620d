"""Tags: words that people put on their own conversations. Two that differ only in case are one, as first spelled.

Raises NotFound for what is not the asker's, and BadInput, naming `tags`, for what cannot be a tag.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence

from django.db import transaction

from chatapp.chat import changes, selectors
from chatapp.chat.models import LONGEST_TAG, Conversation, Tag
from chatapp.chat.text import one_line, settled
from chatapp.errors import BadInput, NotFound
from chatapp.tenants.access import Access

MOST_TAGS = 20
# Of a tag that is renamed everywhere so many conversations are told of at once; a list shows no more without scrolling.
MOST_TOLD = 200


def clean_tag(name: object) -> str:
    """One line without what would turn its direction; a # before it is how people write tags, and no part of it."""
    if not isinstance(name, str):
        raise BadInput("A tag must be a text.", param="tags")
    words = _line(name[: 10 * LONGEST_TAG])
    if not any(unicodedata.category(c)[0] in "LNSP" for c in words):
        raise BadInput("A tag needs a letter, a number or a sign.", param="tags")
    if len(words) > LONGEST_TAG:
        raise BadInput(f"A tag has at most {LONGEST_TAG} characters; this one has {len(words)}.", param="tags")
    return words


def fitting(names: Iterable[str], known: dict[str, str]) -> list[str]:
    """Of what a file calls its tags those that one conversation can have: long ones cut, what cannot be a tag left out,
    MOST_TAGS of them. `known`: how the asker spells tags, by their casefolded names; new ones are added to it."""
    found: dict[str, str] = {}
    for name in names:
        try:
            word = clean_tag(_line(name)[:LONGEST_TAG])
        except BadInput:
            continue
        if len(found) < MOST_TAGS:
            found.setdefault(word.casefold(), known.setdefault(word.casefold(), word))
    return list(found.values())


@transaction.atomic
def change_tags(
    *, access: Access, conversation: Conversation, add: Iterable[object] = (), remove: Iterable[object] = ()
) -> None:
    """Of a conversation of the asker's own. What is there already, or is not there to be taken off, stays as it is."""
    _apply(conversation, _spelled(access, add), {clean_tag(name).casefold() for name in remove})


@transaction.atomic
def set_tags(*, access: Access, conversation: Conversation, names: Sequence[object]) -> None:
    """These and no others."""
    wanted = _spelled(access, names)
    kept = {name.casefold() for name in wanted}
    _apply(conversation, wanted, {tag.name.casefold() for tag in conversation.tags.all()} - kept)


@transaction.atomic
def rename_tag(*, access: Access, name: object, to: object) -> int:
    """On all of the asker's conversations; where it is there under the new name already, the two become one. How many
    conversations that were."""
    old, new = clean_tag(name), clean_tag(to)
    rows = _own(access, old)
    if not rows:
        raise NotFound("You have no such tag.", param="tags")
    others = [tag for tag in selectors.tags(access) if tag[0].casefold() == new.casefold() != old.casefold()]
    new = others[0][0] if others else new
    has = {row.conversation_id for row in _own(access, new) if row.name == new}
    doubled = [row.pk for row in rows if row.name != new and row.conversation_id in has]
    renamed = [row.pk for row in rows if row.name != new and row.conversation_id not in has]
    _each(doubled, lambda keys: Tag.objects.filter(pk__in=keys).delete())
    _each(renamed, lambda keys: Tag.objects.filter(pk__in=keys).update(name=new))
    _tell(rows)
    return len({row.conversation_id for row in rows})


@transaction.atomic
def remove_tag(*, access: Access, name: object) -> int:
    """From all of the asker's conversations. How many that were."""
    rows = _own(access, clean_tag(name))
    if not rows:
        raise NotFound("You have no such tag.", param="tags")
    _each([row.pk for row in rows], lambda keys: Tag.objects.filter(pk__in=keys).delete())
    _tell(rows)
    return len({row.conversation_id for row in rows})


# --- parts --------------------------------------------------------------------------------------------------------


def _line(name: str) -> str:
    words = one_line(settled(name))
    return unicodedata.normalize("NFC", "".join(c for c in words if unicodedata.category(c) != "Cc")).lstrip("# ")


def _own(access: Access, name: str) -> list[Tag]:
    """Rows of the asker's tag however it is spelled, the conversations that were used last first."""
    spellings = [known for known, _ in selectors.tags(access) if known.casefold() == name.casefold()]
    owner = {"conversation__user": access.user} if access.user is not None else {"conversation__key": access.key}
    rows = Tag.objects.filter(conversation__tenant=access.tenant, name__in=spellings, **owner)
    return list(rows.select_related("conversation").order_by("-conversation__updated_at"))


def _spelled(access: Access, names: Iterable[object]) -> list[str]:
    """Each once, as the asker has spelled it before."""
    found: dict[str, str] = {}
    for name in names:
        word = clean_tag(name)
        found.setdefault(word.casefold(), word)
    if found:
        for known, _ in selectors.tags(access):
            if known.casefold() in found:
                found[known.casefold()] = known
    return list(found.values())


def _apply(conversation: Conversation, add: Sequence[str], remove: set[str]) -> None:
    # Its row is what two changes at once wait for.
    Conversation.objects.select_for_update().filter(pk=conversation.pk).first()
    has = {tag.name.casefold(): tag for tag in Tag.objects.filter(conversation=conversation)}
    gone = [tag.pk for word, tag in has.items() if word in remove]
    new = [name for name in add if name.casefold() not in has]
    # Taking off is always possible: a conversation from an older version may have more.
    if new and len(has) - len(gone) + len(new) > MOST_TAGS:
        raise BadInput(f"A conversation has at most {MOST_TAGS} tags. Take one off first.", param="tags")
    if not gone and not new:
        return
    Tag.objects.filter(pk__in=gone).delete()
    Tag.objects.bulk_create([Tag(conversation=conversation, name=name) for name in new])
    changes.changed(conversation)


def _each(keys: list[int], act: Callable[[list[int]], object]) -> None:
    """A few hundred at a time: databases bound how many a statement may name."""
    for at in range(0, len(keys), 500):
        act(keys[at : at + 500])


def _tell(rows: list[Tag]) -> None:
    told = list({row.conversation_id: row.conversation for row in rows}.values())[:MOST_TOLD]
    for conversation in told:
        changes.changed(conversation)
