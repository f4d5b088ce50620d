"""People who log in, teams with an object for every address, and a folder for their files."""

from tests.chat.conftest import server, strangers, team
from tests.data.conftest import data_folder, sent
from tests.tenants.test_every_address import ids

__all__ = ["data_folder", "ids", "sent", "server", "strangers", "team"]
