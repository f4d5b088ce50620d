"""The operators' first page on the real product: figures that move by themselves, and a worker drained there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.browser.conftest import Chat
from tests.stack import ROOT, Stack, wait_for

AXE = ROOT / "node_modules/axe-core/axe.min.js"
pytestmark = [pytest.mark.browser, pytest.mark.long]


@pytest.fixture
def asking(product: Stack) -> Iterator[Callable[..., Any]]:
    """Asks over the API, beside the test; whatever happens, the worker takes requests at the end."""
    pool = ThreadPoolExecutor(4)

    def ask(team: int, tokens: int) -> Any:
        body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": tokens, "ignore_eos": True}
        headers = {"Authorization": f"Bearer {product.key(team)}"}
        return pool.submit(httpx.post, f"{product.url}/v1/chat/completions", json=body, headers=headers, timeout=120)

    yield ask
    for key in product.redis.keys("octavo:worker:*"):
        product.redis.hdel(key, "drain")
    pool.shutdown()


def fact(card: Locator, name: str) -> Locator:
    return card.locator("dl > div", has=card.page.locator("dt", has_text=re.compile(f"^{name}$"))).locator("dd")


def complaints_of_axe(page: Page) -> list[Any]:
    """Of all that the page can show at once: in an empty one the tables are missing."""
    page.evaluate(AXE.read_text())
    found = "async () => (await axe.run('#content')).violations.map((one) => [one.id, one.nodes.map((n) => n.html)])"
    return list(page.evaluate(found))


def hurry(page: Page) -> None:
    """From here on the page asks as often as if its reader came back to it all the time."""
    page.evaluate("void setInterval(() => document.dispatchEvent(new Event('visibilitychange')), 400)")


def settled(page: Page) -> None:
    """Nothing is broken; what is only to be looked at may be the machine's, such as a disk that fills."""
    # Of an engine that another test has killed it is said for a minute that it is gone.
    expect(page.locator(".overall")).not_to_contain_text("broken", timeout=150_000)
    expect(page.locator("#models .state")).to_have_class("state good")


@pytest.mark.timeout(300)
def test_an_operator_sees_the_engine_work_drains_it_and_takes_it_back(
    context: BrowserContext,
    product: Stack,
    asking: Callable[..., Any],
    complaints: list[str],
    picture: Callable[..., None],
) -> None:
    product.wait_idle()
    (worker,) = wait_for(product.workers)
    page = context.new_page()
    Chat(page, product).log_in("/admin/", product.demo["operator"])
    card = page.locator(".worker", has_text=worker.id)
    expect(card).to_contain_text("Takes requests, idle")
    settled(page)
    # Beat, Celery and the recorder have left their signs, and all of it is in order.
    for name in ("Beat", "Celery worker", "Recorder", "Migrations", "Eviction"):
        expect(page.locator("#health .good", has=page.locator("dt", has_text=name)).first).to_be_visible()

    # What runs shows up by itself, and what has the focus keeps it.
    drain = card.get_by_role("button", name="Drain")
    drain.focus()
    page.evaluate("window.held = document.activeElement")
    hurry(page)  # at its own pace the page may miss an answer that takes a second
    running = asking(0, 900)
    expect(fact(card, "Running")).to_have_text("1")
    expect(fact(card, "Steps")).to_contain_text(re.compile(r"a second, [\d.]+ ms each"))
    expect(card).to_contain_text(re.compile(r"[1-9]\d* % used, \d+ % cached|< 1 % used"))
    assert page.evaluate("window.held === document.activeElement && window.held.isConnected")

    # The last worker of its model: the page asks first, by keyboard too.
    drain.press("Enter")
    expect(page.get_by_role("heading", name=f"Drain {worker.id}?", level=2)).to_be_visible()
    expect(page.get_by_text("the last worker that takes requests")).to_be_visible()
    page.get_by_role("button", name="Drain the last worker").click()
    hurry(page)
    expect(card).to_contain_text("takes nothing new")
    assert running.result().status_code == 200, "what ran was finished"
    expect(card).to_contain_text("Drained: idle")
    expect(page.locator(".overall")).to_contain_text("broken")
    waiting = asking(1, 4)
    queue = page.locator("#queues tbody tr", has_text=product.demo["tenants"][1]["name"])
    expect(queue.locator("td").nth(2)).to_have_text("1")
    assert not waiting.done()
    picture(page, "-drained")
    assert complaints_of_axe(page) == []

    card.get_by_role("button", name="Take again").click()
    hurry(page)
    assert waiting.result().status_code == 200, "who waited is answered"
    settled(page)
    expect(page.locator("#queues")).to_contain_text("Nothing waits")
    expect(page.locator("#slow tbody tr").first).to_contain_text("decode")

    # A server that is silent is said, and the last figures stay.
    page.route("**/operations.json", lambda route: route.abort())
    expect(page.locator("#pulse")).to_contain_text("does not answer")
    expect(card).to_be_visible()
    page.unroute("**/operations.json")
    expect(page.locator("#pulse")).to_contain_text("Live")
    complaints.clear()  # the browser's own words about the request that was cut off

    for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        picture(page, f"-{scheme}-{width}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing makes the page scroll"

    context.clear_cookies()
    expect(page.locator("#pulse")).to_contain_text("not logged in as an operator")
