"""What stands before several web processes, as a reverse proxy would: takes the next one that answers.

It knows TCP alone. A process that is frozen still accepts connections; to notice that is the clients' part.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

from tests.stack import free_port

PIECE = 1 << 16


class Proxy:
    """Runs in a thread of its own."""

    def __init__(self, ports: list[int]) -> None:
        self.port = free_port()
        self._ports = ports
        self._next = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="proxy", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        listening = threading.Event()
        self._loop.call_soon(lambda: self._keep(self._listen(listening)))
        self._thread.start()
        assert listening.wait(5), "the proxy listens"

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
            self._loop.close()

    def _keep(self, work: object) -> None:
        task = self._loop.create_task(work)  # type: ignore[arg-type, var-annotated]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, listening: threading.Event) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        listening.set()
        async with server:
            await server.serve_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        for _ in self._ports:
            self._next += 1
            try:
                there, to = await asyncio.open_connection("127.0.0.1", self._ports[self._next % len(self._ports)])
            except OSError:
                continue
            await asyncio.gather(self._pass(reader, to), self._pass(there, writer))
            return
        writer.close()

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction until it ends; then the other one ends too."""
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE):
                writer.write(piece)
                await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()
