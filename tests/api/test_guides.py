"""The pages for members, admins and integrators as the site serves them: their files, with its own address."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from django.test import Client

from chatapp.api import guides
from tests.chat.conftest import Team, server, team
from tests.docs import pages
from tests.tenants.people import log_in

__all__ = ["server", "team"]

pytestmark = pytest.mark.django_db


def page(name: str) -> str:
    reply = Client().get(f"/docs/{name}")
    assert reply.status_code == 200
    return reply.content.decode()


@pytest.mark.parametrize("name", guides.GUIDES)
def test_a_page_has_every_heading_and_every_table_and_program_of_its_file(name: str) -> None:
    text = page(name)
    file = pages.ROOT / "docs" / f"{name}.md"
    headings = re.findall(r"^## (.+)$", file.read_text(), re.MULTILINE)
    assert re.findall(r'<h2 id="([^"]+)">', text) == [guides.anchor(heading) for heading in headings]
    assert {guides.anchor(heading) for heading in headings} <= pages.anchors(file)
    assert text.count("<pre>") == len(pages.blocks(file)) + file.read_text().count("\n\n    {")
    assert text.count("<table>") == len(re.findall(r"^\|-", file.read_text(), re.MULTILINE))


def test_examples_have_the_sites_own_address() -> None:
    text = page("integrators")
    assert guides.HERE not in text
    assert "OCTAVO_URL=http://testserver" in text


def test_links_lead_to_pages_that_are_served_and_others_are_plain_text() -> None:
    text = page("integrators")
    assert 'href="/docs/admins#api-keys"' in text
    assert 'href="https://www.standardwebhooks.com"' in text
    assert "clients/python</a>" not in text
    assert "clients/python" in text
    assert not re.search(r'href="[^"]*\.md', text)


def test_what_is_not_among_them_is_not_there() -> None:
    for name in ("operators", "LOG", "architecture", "nothing"):
        assert Client().get(f"/docs/{name}").status_code == 404


def test_markup_in_a_file_is_shown_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "members.md").write_text(
        "# Title <b>\n\n<script>alert(1)</script>\n\n## Part\n\n[x](javascript:alert)\n"
    )
    monkeypatch.setattr(guides, "FOLDER", tmp_path)
    text = page("members")
    assert "<script>alert" not in text
    assert "javascript:alert" not in re.findall(r'href="([^"]*)"', text)
    assert "Title &lt;b&gt;" in text


def test_without_the_files_there_are_no_pages_and_nothing_leads_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "/docs/members" in Client().get("/docs/").content.decode()
    monkeypatch.setattr(guides, "FOLDER", tmp_path)
    assert Client().get("/docs/members").status_code == 404
    assert "/docs/members" not in Client().get("/docs/").content.decode()


def test_the_account_menu_leads_members_and_admins_to_their_page(team: Team) -> None:
    base = f"/t/{team.tenant.slug}/"
    owner = log_in(team.owner.user)
    assert 'href="/docs/members"' in owner.get(base).content.decode()
    assert 'href="/docs/admins"' in owner.get(f"{base}admin/members").content.decode()


def test_a_file_that_changes_is_shown_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guides, "FOLDER", tmp_path)
    for at, words in enumerate(("First", "Second")):
        (tmp_path / "members.md").write_text(f"# {words}\n\nText.\n")
        os.utime(tmp_path / "members.md", ns=(at, at))
        assert f"<h1>{words}</h1>" in page("members")
