"""The same team and server as in the tests of the chat."""

from tests.chat.conftest import server, strangers, team

__all__ = ["server", "strangers", "team"]
