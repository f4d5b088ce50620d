"""The browser client on a page of somebody else's: another origin, tickets from a server of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.stack import ROOT, Stack, free_port, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.long]


@pytest.fixture
def website(product: Stack) -> Iterator[str]:
    """The example of the Python client, which serves the example page."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, str(ROOT / "clients" / "python" / "examples" / "ticket_server.py"), str(port)],
        env={**os.environ, "OCTAVO_URL": product.url, "OCTAVO_API_KEY": product.key()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"

    def up() -> bool:
        try:
            return httpx.get(url).status_code == 200
        except httpx.TransportError:
            return False

    wait_for(up)
    yield url
    server.terminate()
    server.wait(10)


def test_a_page_of_another_origin_asks_and_stops_without_seeing_the_key(
    context: BrowserContext, website: str, product: Stack, picture: Callable[[Page], None]
) -> None:
    page = context.new_page()
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    page.goto(website)
    assert product.key() not in page.content()
    page.get_by_label("Question").fill("Tell me a long story about the sea, with every detail.")
    page.get_by_role("button", name="Ask").click()
    page.wait_for_function("document.querySelector('#answer').textContent.length > 20")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#state")).to_have_text("cancelled")
    kept = page.locator("#answer").text_content() or ""
    assert len(kept) > 20
    product.wait_idle()
    assert page.locator("#answer").text_content() == kept
    page.get_by_label("Question").fill("Say hello.")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("#answer")).not_to_have_text("", timeout=30_000)
    expect(page.locator("#state")).to_have_text(re.compile("^(completed|incomplete)$"), timeout=60_000)
    picture(page)
    assert set(sockets) == {f"{product.ws_url}/ws/v1"}
    # Whoever is not of this website gets no ticket.
    assert httpx.post(f"{website}/ticket", headers={"Origin": "https://evil.example"}).status_code == 403
