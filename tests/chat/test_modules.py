from __future__ import annotations

import pytest
from django.test import Client

from chatapp.chat import modules
from tests.chat.conftest import Team

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("module", modules.MODULES)
def test_every_module_imports_only_what_the_import_map_knows(module: str) -> None:
    known = modules.addresses()
    assert [name for name in modules.needed_by(module) if name not in known] == []


def test_the_workspace_names_all_modules_that_it_will_import(client: Client, team: Team) -> None:
    client.force_login(team.member.user)
    page = client.get(f"/t/{team.tenant.slug}/").content.decode()
    wanted = modules.needed_by("chat.js")
    assert "#octavo/octavo.js" in wanted, "what the modules of the page import themselves belongs to it"
    assert "highlight.js" not in wanted, "what is loaded when it is wanted is not"
    for name in wanted:
        assert f'<link rel="modulepreload" href="{modules.addresses()[name]}">' in page
