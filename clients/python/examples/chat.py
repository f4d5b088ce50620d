"""A chat in a terminal. Ctrl-C stops an answer, Ctrl-D ends the chat.

OCTAVO_URL=http://127.0.0.1:8000 OCTAVO_API_KEY=octv_… python chat.py [conversation id]
"""

from __future__ import annotations

import sys

from octavo_client import Octavo, OctavoError


def main() -> int:
    with Octavo() as octavo:
        chat = octavo.conversation(sys.argv[1] if len(sys.argv) > 1 else None)
        while True:
            try:
                question = input("> ")
            except (EOFError, KeyboardInterrupt):
                print(f"\nGo on with: {sys.argv[0]} {chat.id}" if chat.id else "")
                return 0
            if not question.strip():
                continue
            try:
                for text in chat.stream(question).texts():
                    print(text, end="", flush=True)
                print()
            except KeyboardInterrupt:
                print(" [stopped]")
            except OctavoError as error:
                print(f"[{error}]")


if __name__ == "__main__":
    sys.exit(main())
