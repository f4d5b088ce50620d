"""A mail server for tests: real SMTP on loopback, keeps what it is given, takes one password."""

from __future__ import annotations

import base64
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message

USER, PASSWORD = "octavo", "p@ss word"


class Handler(socketserver.StreamRequestHandler):
    server: Server

    def say(self, line: str) -> None:
        self.wfile.write(line.encode() + b"\r\n")

    def handle(self) -> None:
        self.say("220 tests")
        while line := self.rfile.readline().decode().strip():
            verb = line.split()[0].upper()
            if verb == "EHLO":
                self.say("250-tests")
                self.say("250 AUTH PLAIN")
            elif verb == "AUTH":
                given = base64.b64decode(line.split()[2]).decode().split("\0")[1:]
                self.say("235 welcome" if given == [USER, PASSWORD] else "535 no")
            elif verb == "RCPT" and "nobody@" in line:
                self.say("550 unknown")
            elif verb == "DATA":
                self.say("354 go on")
                data = b""
                while (part := self.rfile.readline()) != b".\r\n":
                    data += part
                self.server.mails.append(message_from_bytes(data))
                self.say("250 kept")
            elif verb == "QUIT":
                self.say("221 bye")
                return
            else:
                self.say("250 fine")


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.mails: list[Message] = []

    @property
    def at(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"smtp://{self.at}?tls=none"


@contextmanager
def running() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield server
        server.shutdown()
