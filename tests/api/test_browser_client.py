"""The browser client's file, as pages of others get it."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from chatapp.api import browser_client

ADDRESS = "/client/octavo.js"


@pytest.mark.django_db
def test_any_page_may_load_the_client_and_keeps_it_until_it_changes() -> None:
    reply = Client().get(ADDRESS, headers={"Origin": "https://app.example.com"})
    assert (reply.status_code, reply["Content-Type"]) == (200, "text/javascript; charset=utf-8")
    assert reply.content == browser_client.FILE.read_bytes()
    assert reply["Access-Control-Allow-Origin"] == "*"
    assert reply["Cross-Origin-Resource-Policy"] == "cross-origin"
    assert reply["Cache-Control"] == "public, max-age=3600"
    assert not reply.cookies
    again = Client().get(ADDRESS, headers={"If-None-Match": reply["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again["Access-Control-Allow-Origin"] == "*"
    assert Client().head(ADDRESS).status_code == 200
    assert Client().post(ADDRESS).status_code == 405


def test_the_client_asks_for_no_other_file() -> None:
    text = browser_client.FILE.read_text()
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    assert not re.search(r"\bimport\b", code)
