"""The documentation's pages: for everybody, made of the published document, and with nothing that leads nowhere."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from chatapp.api import asyncapi, guides
from chatapp.api.reference import marked

pytestmark = pytest.mark.django_db
PAGES = ("/docs/", "/docs/websocket", *(f"/docs/{name}" for name in guides.GUIDES))


def page(path: str) -> str:
    reply = Client().get(path, headers={"host": "testserver"})
    assert reply.status_code == 200
    return reply.content.decode()


@pytest.mark.parametrize("path", PAGES)
def test_the_pages_are_public_and_only_to_be_read(path: str) -> None:
    assert "sessionid" not in Client().get(path).cookies
    assert Client().post(path).status_code == 405


@pytest.mark.parametrize("path", PAGES)
def test_every_link_leads_somewhere(path: str) -> None:
    text = page(path)
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids)), "an anchor names one place"
    links = set(re.findall(r'href="([^"]+)"', text))
    assert {link.removeprefix("#") for link in links if link.startswith("#")} <= set(ids)
    for link in links:
        # The OpenAI-compatible API's document is another part's; that it is there is asserted with it.
        if link.startswith("/") and not link.startswith(("/static/", "/v1/")) and link != "/":
            assert Client().get(link).status_code == 200, link


@pytest.mark.parametrize("path", PAGES)
def test_nothing_in_them_needs_more_than_the_content_policy_allows(path: str) -> None:
    text = page(path)
    assert not re.search(r"\sstyle=|\son\w+=", text)
    assert all("src=" in tag or "nonce=" in tag for tag in re.findall(r"<script[^>]*>", text))


def test_the_reference_shows_every_frame_with_its_fields_and_examples_every_error_and_every_close_code() -> None:
    text = page("/docs/websocket")
    schemas = asyncapi.schemas()
    for struct in (*asyncapi.CLIENT_FRAMES, *asyncapi.SERVER_FRAMES):
        name = asyncapi.tag(struct)
        part = text.partition(f'<h3 id="{re.sub("[^a-z]", "-", name)}">')[2].partition("</article>")[0]
        assert name in part
        for field in set(schemas[struct.__name__]["properties"]) - {"type"}:
            assert f"<code>{field}</code>" in part, (name, field)
        assert part.count("<pre>") == len(asyncapi.examples_of(name))
    for code in (*asyncapi.ERROR_CODES, *map(str, asyncapi.CLOSE_CODES)):
        assert f"<code>{code}</code>" in text, code


def test_it_names_the_address_that_it_is_read_at() -> None:
    reply = Client().get("/docs/websocket", headers={"host": "localhost:8123"})
    assert "ws://localhost:8123/ws/v1" in reply.content.decode()


def test_names_in_texts_are_set_as_code_and_nothing_else_becomes_html() -> None:
    assert marked("a <b> & `x<y>` and stream_id, response.created.") == (
        "a &lt;b&gt; &amp; <code>x&lt;y&gt;</code> and <code>stream_id</code>, <code>response.created</code>."
    )
