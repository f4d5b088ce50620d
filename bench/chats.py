"""Long conversations in the database of a site, for bench.pages and for tests of long chats.

    OCTAVO_DATA=… DJANGO_SETTINGS_MODULE=… python -m bench.chats SLUG EMAIL --messages 500 [--messages 2000 …]

Questions are short; one answer in four is long, with headings, code, a table and lists, the others have a paragraph or
two. Every message has its number in its text. Prints the conversations' ids by their numbers of messages, as JSON.
"""

from __future__ import annotations

import argparse
import json
from datetime import timedelta
from typing import Any

CODE = '''```python
def pages(rows: list[int], size: int = {n}) -> list[list[int]]:
    """Cut rows into pages; the last one may be shorter."""
    found = []
    for start in range(0, len(rows), size):
        found.append(rows[start : start + size])
    return found


assert pages(list(range(7)), 3) == [[0, 1, 2], [3, 4, 5], [6]]
```'''
TABLE = """| Block | Tokens | Held by | Cached |
|---|--:|---|:-:|
| {n} | 16 | the prompt of the team | yes |
| {m} | 16 | this conversation | yes |
| last | 7 | this answer | no |"""
PROSE = (
    "A block table maps the places of a sequence to blocks of a pool, so that sequences with the same beginning hold "
    "the same blocks, and none is copied before one of them writes to it. "
)


def question(number: int) -> str:
    asked = ("How does a prefix cache work?", "And with a longer prompt?", "Show me code for that.", "Why?")
    return f"{asked[number // 2 % len(asked)]} (message {number})"


def answer(number: int) -> str:
    if number // 2 % 4:
        return f"In short, as of message {number}: {PROSE * (1 + number // 2 % 3)}\n\nThat is **all** of it."
    parts = [
        f"## What message {number} says",
        PROSE * 3,
        CODE.format(n=number),
        f"The same as a table, with `{number}` in it:",
        TABLE.format(n=number, m=number + 1),
        "### In steps",
        "\n".join(f"{step}. {PROSE}" for step in range(1, 5)),
        "- what is *shared* is never written to\n- what is **written to** is never shared\n  - but the last block",
        PROSE * 4,
    ]
    return "\n\n".join(parts)


def make(slug: str, email: str, sizes: list[int]) -> dict[int, str]:
    """Conversations of that many messages, as one line of questions and answers."""
    from django.utils import timezone

    from chatapp.accounts.models import User
    from chatapp.chat.models import Conversation, Generation, Message, MessageRole, State
    from chatapp.scope import tenant_scope, unscoped
    from chatapp.tenants.models import Tenant

    with unscoped("demo"):
        tenant = Tenant.objects.get(slug=slug)
    user = User.objects.get(email=email)
    made = {}
    with tenant_scope(tenant):
        for size in sizes:
            now = timezone.now()
            conversation = Conversation.objects.create(tenant=tenant, user=user, title=f"{size:,} messages")
            messages: list[Any] = []
            generations = []
            for number in range(size):
                at = now - timedelta(seconds=20 * (size - number))
                asked = number % 2 == 0
                message = Message(
                    conversation=conversation,
                    parent=messages[-1] if messages else None,
                    role=MessageRole.USER if asked else MessageRole.ASSISTANT,
                    text=question(number) if asked else answer(number),
                    created_at=at,
                )
                messages.append(message)
                if not asked:
                    generations.append(
                        Generation(
                            tenant=tenant,
                            principal=f"user:{user.pk}",
                            conversation=conversation,
                            message=message,
                            model=tenant.model,
                            state=State.FINISHED,
                            created_at=at,
                            deadline=at,
                            ended_at=at,
                            prompt_tokens=100 + number,
                            cached_tokens=80,
                            completion_tokens=len(message.text) // 4,
                            timing={"queue_s": 0.01, "prefill_s": 0.2, "decode_s": 2.0},
                            finish_reason="stop",
                        )
                    )
            Message.objects.bulk_create(messages, batch_size=500)
            Generation.objects.bulk_create(generations, batch_size=500)
            made[size] = str(conversation.pk)
    return made


def main() -> None:
    import django

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slug")
    parser.add_argument("email")
    parser.add_argument("--messages", type=int, action="append", required=True)
    args = parser.parse_args()
    django.setup()
    print(json.dumps(make(args.slug, args.email, args.messages)))


if __name__ == "__main__":
    main()
