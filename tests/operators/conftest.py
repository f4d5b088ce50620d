"""The same team and server as in the tests of the chat."""

from tests.chat.conftest import record, server, strangers, team, worker

__all__ = ["record", "server", "strangers", "team", "worker"]
