"""Nothing is lost and nothing shown twice: other devices, no network, a page closed too early, a dead engine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable

import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, WebSocketRoute, expect

from tests.api.test_slow_clients import web
from tests.browser.conftest import DEADLINE_MS, Chat
from tests.stack import Stack, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.long]

LONG = "Tell me a long story about the sea."
CUT = "async () => { const { octavo } = await import('#octavo/chat.js'); octavo.connection.socket?.close(); }"
SEND = """async ([path, method, body]) => {
  const token = document.querySelector('[name=csrfmiddlewaretoken]').value;
  const headers = {'Content-Type': 'application/json', 'X-CSRFToken': token};
  return (await fetch(path, {method, headers, body: body && JSON.stringify(body)})).status;
}"""


def of_api(chat: Chat) -> str:
    return f"/api/t/{chat.team['slug']}/conversations/{chat.page.url.rpartition('/')[2]}"


def test_another_device_of_the_same_person_is_in_step(
    browser: Browser, context: BrowserContext, product: Stack, picture: Callable[..., None]
) -> None:
    """P2, P3: a new chat, its answer, a second question, a stop, another title and a deletion, without any reload."""
    here = Chat(context.new_page(), product).log_in()
    phone = browser.new_context(base_url=product.url, viewport={"width": 390, "height": 800}, has_touch=True)
    phone.set_default_timeout(DEADLINE_MS)
    there = Chat(phone.new_page(), product).log_in()
    there.field.wait_for()
    here.ask("Name a colour, device one.")
    path = here.page.url.removeprefix(product.url)
    entry = there.page.locator(f"#conversations a[href='{path}']")
    expect(entry).to_have_count(1)
    there.page.get_by_role("button", name="Sidebar").click()
    entry.click()
    assert there.wait_for_end() == here.wait_for_end()

    here.ask(LONG)
    there.page.wait_for_function("() => document.querySelectorAll('.message').length === 4")
    there.wait_for_text()
    there.page.get_by_role("button", name="Stop").click()
    assert here.wait_for_end() == there.wait_for_end()
    assert (here.status(), there.status()) == ("cancelled", "cancelled")
    expect(entry.locator(".dot")).to_have_count(0)

    assert here.page.evaluate(SEND, [of_api(here), "PATCH", {"title": "Renamed elsewhere"}]) == 200
    expect(there.page.locator("#title")).to_have_text("Renamed elsewhere")
    there.page.reload()
    assert there.status() == "cancelled", "a stopped answer stays stopped"
    assert here.page.evaluate(SEND, [of_api(here), "DELETE", None]) == 200
    expect(there.page.get_by_text("was deleted, in another tab or on another device")).to_be_visible()
    expect(entry).to_have_count(0)
    picture(there.page)
    phone.close()


def test_without_a_network_the_page_says_so_at_once_and_a_question_goes_out_later_and_once(
    chat: Chat, complaints: list[str], picture: Callable[..., None]
) -> None:
    """A page that is closed before its question was acknowledged leaves it to the next one of this browser."""
    page, context = chat.log_in().page, chat.page.context
    chat.field.wait_for()
    context.set_offline(True)
    expect(page.locator("#banner")).to_contain_text("You are offline", timeout=1000)
    page.evaluate(CUT)
    field = chat.field
    field.fill("Name a fruit, offline.")
    field.press("Enter")
    expect(page.locator(".message.user .text")).to_have_text("Name a fruit, offline.")
    expect(chat.answer.locator(".state")).to_contain_text("Sending")
    picture(page)
    page.close()
    context.set_offline(False)

    later = Chat(context.new_page(), chat.product)
    later.page.goto(f"/t/{chat.team['slug']}/")
    later.page.wait_for_url("**/c/*")
    text = later.wait_for_end()
    expect(later.page.locator(".message.user .text")).to_have_text("Name a fruit, offline.")
    assert later.stored()["text"] == text
    again = Chat(context.new_page(), chat.product)
    again.page.goto(f"/t/{chat.team['slug']}/")
    again.field.wait_for()
    expect(again.page.locator("#conversations a", has_text="Name a fruit, offline.")).to_have_count(1)
    expect(again.page.locator(".message")).to_have_count(0)
    assert again.field.input_value() == ""
    complaints.clear()  # Chromium reports each connection that failed


def test_a_laptop_that_slept_through_an_answer_shows_all_of_it(chat: Chat, complaints: list[str]) -> None:
    """The page is frozen and the network gone while the answer is given; then both are back."""
    page, context = chat.log_in().page, chat.page.context
    chat.ask(LONG)
    before = chat.wait_for_text()
    tools = context.new_cdp_session(page)
    context.set_offline(True)
    page.evaluate(CUT)
    tools.send("Page.setWebLifecycleState", {"state": "frozen"})
    chat.product.wait_idle()
    tools.send("Page.setWebLifecycleState", {"state": "active"})
    context.set_offline(False)
    text = chat.wait_for_end()
    assert text.startswith(before)
    assert text == chat.stored()["text"]
    expect(page.locator("#banner")).to_be_hidden()
    complaints.clear()


def test_a_web_process_that_dies_in_the_middle_of_an_answer_is_not_noticed_in_its_text(
    chat: Chat, complaints: list[str]
) -> None:
    """The supervisor starts another one; the page that was open finds it, and is not loaded again."""
    page = chat.log_in().page
    chat.ask(LONG)
    before = chat.wait_for_text()
    page.evaluate("() => { window.stillTheSame = true; }")
    victim = web(chat.product)
    victim.kill()
    text = chat.wait_for_end()
    assert text.startswith(before)
    assert text == chat.stored()["text"]
    assert chat.status() in ("completed", "incomplete")
    assert page.evaluate("() => window.stillTheSame === true")
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator("#conversations .dot")).to_have_count(0)
    assert web(chat.product).pid != victim.pid
    complaints.clear()  # Chromium reports each connection that failed


def test_an_answer_whose_engine_dies_goes_on_by_itself_once_there_is_one_again(chat: Chat) -> None:
    """P4: no endless spinner, and nothing to press."""
    page = chat.log_in().page
    chat.ask(LONG)
    chat.wait_for_text()
    os.kill(engine_pid(chat.product), signal.SIGKILL)
    page.wait_for_timeout(1000)
    before = chat.raw()
    wait_for(lambda: chat.product.workers(), 60)
    wait_for(lambda: len(chat.raw()) > len(before) + 20, 60)
    assert chat.raw().startswith(before)
    expect(chat.answer.locator(".notice")).to_be_hidden()
    page.keyboard.press("Escape")
    chat.wait_for_end()
    assert chat.status() == "cancelled"
    shown = chat.raw()
    page.reload()
    wait_for(lambda: chat.answer.count() and chat.raw() == shown, 30)  # what was kept is what was shown


def engine_pid(product: Stack) -> int:
    """The process that computes, and not the one that watches over it."""
    for child in psutil.Process(product.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = child.cmdline()
            if "engine.worker" in words and "ops.child" not in words:
                return child.pid
    raise AssertionError("no engine runs")


def test_a_page_that_is_not_let_in_says_why_all_the_while_and_goes_on_once_there_is_room(chat: Chat) -> None:
    words = "You have 64 sockets open already; close some."
    refusal = {"type": "error", "code": "too_many_sockets", "message": words, "retryable": True, "retry_after_ms": 1000}
    full, turned_away = True, []

    def meet(socket: WebSocketRoute) -> None:
        if not full:
            socket.connect_to_server()
            return
        turned_away.append(socket)
        socket.send(json.dumps(refusal))
        socket.close(code=4429)

    chat.page.route_web_socket("**/ws/ui**", meet)
    chat.log_in()
    banner = chat.page.locator("#banner")
    expect(banner).to_contain_text(words)
    chat.page.evaluate(
        "window.hidden = 0; new MutationObserver(() => { hidden += document.querySelector('#banner').hidden; })"
        ".observe(document.querySelector('#banner'), { attributes: true })"
    )
    met = len(turned_away)
    while len(turned_away) < met + 2:
        chat.page.wait_for_timeout(100)
    assert chat.page.evaluate("hidden") == 0, "it does not come and go with each attempt"
    full = False
    expect(banner).to_be_hidden()
    chat.ask("Name a colour.").wait_for_end()
    assert chat.status() == "completed"
