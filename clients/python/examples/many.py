"""Many questions at once over one connection, each answered with nothing kept.

OCTAVO_URL=http://127.0.0.1:8000 OCTAVO_API_KEY=octv_… python many.py < questions.txt
"""

from __future__ import annotations

import asyncio
import sys

from octavo_client import AsyncOctavo, OctavoError


async def main() -> None:
    questions = [line.strip() for line in sys.stdin if line.strip()]
    async with AsyncOctavo() as octavo:

        async def answer(question: str) -> None:
            try:
                found = await octavo.ask([{"role": "user", "content": question}], max_tokens=64, temperature=0)
            except OctavoError as error:
                found = f"[{error}]"
            print(f"{question}\t{' '.join(found.split())}", flush=True)

        await asyncio.gather(*map(answer, questions))


if __name__ == "__main__":
    asyncio.run(main())
