"""Ask once: OCTAVO_URL=http://127.0.0.1:8000 OCTAVO_API_KEY=octv_… python ask.py "What is a prefix cache?" """

from __future__ import annotations

import sys

from octavo_client import Octavo, OctavoError


def main() -> int:
    question = " ".join(sys.argv[1:]) or "What is the capital of France?"
    try:
        with Octavo() as octavo:
            stream = octavo.stream(question, max_tokens=256)
            for text in stream.texts():
                print(text, end="", flush=True)
            usage = stream.answer.usage
            print(f"\n[{stream.answer.status}, {usage.completion_tokens if usage else 0} tokens]")
    except KeyboardInterrupt:
        print("\n[stopped]")
    except (OctavoError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
