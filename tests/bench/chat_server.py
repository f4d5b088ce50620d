"""A small OpenAI-compatible chat server over real HTTP; as a program it takes llama-server's arguments.

    python -m tests.bench.chat_server -m FILE --port 8080 …

Every answer is `max_tokens` words, one a chunk behind an empty one. `behave` says what a request gets instead: None (an
answer), "refuse" (429), "break" (an error in the stream), "uncounted" (no usage), "silent" (nothing at all).
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behave = Callable[[dict[str, Any]], str | None]


class ChatServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behave: Behave = lambda body: None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.behave = behave
        self.seen: list[tuple[str | None, dict[str, Any]]] = []  # (Authorization, body) by arrival
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.closing = threading.Event()

    def asked(self, key: str | None = None) -> list[list[dict[str, str]]]:
        """The messages of all but the greeting, of one key or of all."""
        bodies = [body for sent, body in self.seen[1:] if key is None or sent == f"Bearer {key}"]
        return [body["messages"] for body in bodies]

    def __enter__(self) -> ChatServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def log_message(self, *arguments: object) -> None:
        """Tests print nothing."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.headers.get("Authorization"), body))
        instead = self.server.behave(body)
        if instead == "silent":
            self.server.closing.wait(30)
            return
        self.send_response(429 if instead == "refuse" else 200)
        self.end_headers()
        if instead == "refuse":
            self.wfile.write(b'{"error": {"message": "slower"}}')
            return
        self.chunk(choices=[{"delta": {"role": "assistant", "content": ""}}])
        for number in range(body["max_tokens"]):
            self.chunk(choices=[{"delta": {"content": f"word{number} "}}])
            if instead == "break":
                self.chunk(error={"message": "out of words"})
                return
        prompt = sum(len(message["content"].split()) for message in body["messages"])
        usage = {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}
        if instead != "uncounted":
            self.chunk(choices=[], usage={**usage, "prompt_tokens_details": {"cached_tokens": prompt // 2}})
        self.wfile.write(b"data: [DONE]\n\n")

    def chunk(self, **content: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(content).encode() + b"\n\n")
        self.wfile.flush()


if __name__ == "__main__":
    with ChatServer(port=int(sys.argv[sys.argv.index("--port") + 1])) as server:
        server.closing.wait()
