"""A website of your own with a page that asks Octavo: it keeps the key, and gives each visitor one-time tickets.

OCTAVO_URL=http://127.0.0.1:8000 OCTAVO_API_KEY=octv_… python ticket_server.py [port]

A real one would first look at who is asking, before it spends your team's budget on them.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PAGE = Path(__file__).parents[2] / "browser" / "example.html"


class Website(BaseHTTPRequestHandler):
    octavo: str
    key: str
    origin: str

    def do_GET(self) -> None:
        if self.path != "/":
            self.send_error(404)
            return
        self._answer(200, "text/html; charset=utf-8", PAGE.read_text().replace("{{octavo}}", self.octavo).encode())

    def do_POST(self) -> None:
        if self.path != "/ticket" or self.headers.get("Origin") != self.origin:
            self.send_error(403)
            return
        # Only this website's pages can use it, should it get out.
        wanted = json.dumps({"allowed_origins": [self.origin]}).encode()
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.octavo}/v1/tickets", wanted, headers, method="POST")  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310
                self._answer(200, "application/json", reply.read())
        except urllib.error.HTTPError as refusal:
            self._answer(502, "application/json", refusal.read())

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9000
    Website.octavo = os.environ["OCTAVO_URL"].rstrip("/")
    Website.key = os.environ["OCTAVO_API_KEY"]
    Website.origin = f"http://127.0.0.1:{port}"
    print(f"Open {Website.origin}/", flush=True)
    ThreadingHTTPServer(("127.0.0.1", port), Website).serve_forever()


if __name__ == "__main__":
    main()
