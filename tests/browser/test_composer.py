"""Where one writes: what does not fit or cannot be sent, and why; beside another tab, and on a phone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, BrowserContext, Page, Route, WebSocketRoute, expect

from tests.browser.served import ORIGIN, Served, beside_playwright
from tests.chat.conftest import Team, server, strangers, team
from tests.data.conftest import Sent, a_chat, data_folder, sent
from tests.tenants.people import log_in

__all__ = ["Sent", "beside_playwright", "data_folder", "sent", "server", "strangers", "team"]

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.django_db]

PASTE = """(text) => {
  const data = new DataTransfer();
  data.setData("text/plain", text);
  const input = document.querySelector("#input");
  return input.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
}"""


# A conversation that takes its time, as on a train.
SLOW = """const before = window.fetch;
window.let = Promise.resolve();
window.fetch = async (...given) => {
  if (String(given[0]).includes("/conversations/")) await window.let;
  return before(...given);
};"""


@pytest.fixture
def shown(browser: Browser, team: Team, request: pytest.FixtureRequest) -> Iterator[BrowserContext]:
    """The member's browser, with the chat of this process."""
    options: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, **getattr(request, "param", {})}
    context = browser.new_context(base_url=ORIGIN, **options)
    context.set_default_timeout(20_000)
    served = Served(context)
    served.client = log_in(team.member)
    context.served = served
    yield context
    context.close()


def opened(context: BrowserContext, path: str) -> Page:
    page = context.new_page()
    page.goto(path)
    page.locator("#composer[data-ready]").wait_for()
    return page


def test_pasted_megabytes_are_refused_in_words_and_go_along_as_a_file(shown: BrowserContext, team: Team) -> None:
    page = opened(shown, f"/t/{team.tenant.slug}/")
    field, saying = page.locator("#input"), page.locator(".saying")
    field.fill("Read this: ")
    assert page.evaluate(PASTE, "a short text") is True, "what fits is the browser's to paste"
    assert page.evaluate(PASTE, "word " * 500_000) is False
    expect(saying).to_contain_text("What you pasted has 2.4 MB, and a message may have 63 KB.")
    expect(field).to_have_value("Read this: ")
    # Six times as long in JSON: what counts is what is sent.
    field.press("End")
    assert page.evaluate(PASTE, "\x01" * 20_000) is False
    page.get_by_role("button", name="Attach it as a file instead").click()
    expect(saying).to_be_hidden()
    expect(page.locator("#files .file")).to_contain_text("Pasted text.txt")
    expect(field).to_have_value("Read this: ")
    # One that was not pasted: it stays until it is taken along.
    field.fill("wörter " * 20_000)
    expect(page.locator(".limit")).to_contain_text("too long to send")
    field.press("Enter")
    expect(saying).to_contain_text("a message may have 63 KB")
    assert len(field.input_value()) == 140_000
    page.get_by_role("button", name="Attach it as a file instead").click()
    expect(field).to_have_value("")
    expect(page.locator("#files .file")).to_have_count(2)


def test_enter_says_in_place_why_nothing_is_sent(shown: BrowserContext, team: Team) -> None:
    page = opened(shown, f"/t/{team.tenant.slug}/")
    field, saying = page.locator("#input"), page.locator(".saying")
    field.press("Enter")
    expect(saying).to_be_hidden()
    page.locator("#picker").set_input_files([{"name": "empty.txt", "mimeType": "", "buffer": b""}])
    expect(page.locator("#files .file[data-state=failed]")).to_have_count(1)
    field.fill("What does it say?")
    field.press("Enter")
    expect(saying).to_have_text("Take off the file that cannot be read.")
    expect(page.locator(".message")).to_have_count(0)
    expect(field).to_have_value("What does it say?")
    page.get_by_role("button", name="Take off empty.txt").click()
    expect(saying).to_be_hidden()
    expect(page.locator("#composer .send:not(.stop)")).to_be_enabled()


def test_a_file_of_which_the_server_tells_nothing_is_asked_about_no_more(shown: BrowserContext, team: Team) -> None:
    page = opened(shown, f"/t/{team.tenant.slug}/")
    asked: list[str] = []

    def closed(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(status=403, json={"error": {"code": "not_allowed", "message": "No."}})

    page.route("**/files/*", closed)
    page.set_input_files("#picker", {"name": "plan.txt", "mimeType": "text/plain", "buffer": b"Go."})
    expect(page.locator(".file[data-state=failed]")).to_contain_text("may not attach files")
    page.locator("#input").fill("Hello")
    page.locator("#input").press("Enter")
    expect(page.locator(".saying")).to_contain_text("Take off the file")
    assert len(asked) == 1


def test_drafts_and_files_follow_another_tab_but_not_over_what_is_being_written(
    shown: BrowserContext, team: Team
) -> None:
    talk = a_chat(team.member, "Hello", "Hello to you.")
    path = f"/t/{team.tenant.slug}/c/{talk.pk}"
    first, second = opened(shown, path), opened(shown, path)
    one, other = first.locator("#input"), second.locator("#input")
    one.fill("A draft")
    expect(other).to_have_value("A draft")
    other.fill("A draft, and more")
    expect(one).to_have_value("A draft, and more")
    # What an input method is writing stays, and is the last writer's then.
    one.evaluate("input => input.dispatchEvent(new CompositionEvent('compositionstart'))")
    other.fill("The second one's")
    second.evaluate("new Promise((done) => setTimeout(done, 100))")
    expect(one).to_have_value("A draft, and more")
    one.evaluate("input => input.dispatchEvent(new CompositionEvent('compositionend'))")
    one.press("End")
    one.press_sequentially("!")
    expect(other).to_have_value("A draft, and more!")
    # A page that has slept looks at what there is when somebody comes back to it.
    first.evaluate("document.querySelector('#input').value = 'old'; dispatchEvent(new Event('focus'))")
    expect(one).to_have_value("A draft, and more!")
    first.locator("#picker").set_input_files([{"name": "plan.txt", "mimeType": "", "buffer": b"The plan."}])
    for page in (first, second):
        expect(page.locator("#files .file")).to_contain_text("plan.txt")
    second.get_by_role("button", name="Take off plan.txt").click()
    expect(first.locator("#files .file")).to_have_count(0)
    expect(first.locator("#files")).to_be_hidden()


def test_who_uses_the_browser_next_sees_no_draft_and_asks_no_question_of_the_one_before(
    shown: BrowserContext, team: Team
) -> None:
    path = f"/t/{team.tenant.slug}/"
    page = opened(shown, path)
    page.locator("#input").fill("How do I resign?")
    page.locator("#input").press("Enter")  # nobody acknowledges it
    expect(page.locator(".message.user")).to_have_count(1)
    page.locator("#input").fill("My secret")
    page.close()
    shown.served.client = log_in(team.owner)
    other = opened(shown, path)
    expect(other.locator("#input")).to_have_value("")
    expect(other.locator(".message")).to_have_count(0)
    other.close()
    shown.served.client = log_in(team.member)
    again = opened(shown, path)
    expect(again.locator(".message.user")).to_contain_text("How do I resign?")
    expect(again.locator("#input")).to_have_value("My secret")


def test_nothing_is_asked_in_a_conversation_that_is_on_its_way_or_deleted(shown: BrowserContext, team: Team) -> None:
    """It would begin anew there, without what was said, or be lost."""
    talk = a_chat(team.member, "Hello", "Hello to you.")
    other = a_chat(team.member, "Good night", "Sleep well.")
    shown.add_init_script(SLOW)
    page = opened(shown, f"/t/{team.tenant.slug}/")
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    field, saying = page.locator("#input"), page.locator(".saying")
    page.evaluate("() => { window.let = new Promise((done) => { window.go = done; }); }")
    page.locator(f"#conversations a[href$='{talk.pk}']").click()
    field.fill("And then?")
    field.press("Enter")
    expect(saying).to_contain_text("not loaded")
    expect(field).to_have_value("And then?")
    page.evaluate("window.go()")
    expect(page.locator(".message")).to_have_count(2)
    expect(saying).to_be_hidden()
    expect(field).to_have_value("And then?")
    expect(page.locator("#composer .send:not(.stop)")).to_be_enabled()

    # What still stands there while the next is on its way can no longer be pressed.
    left = page.evaluate(
        """(id) => {
          window.let = new Promise((done) => { window.go = done; });
          document.querySelector(`#conversations a[href$='${id}']`).click();
          return [document.querySelectorAll("#log .message").length, document.querySelector("#log").inert];
        }""",
        str(other.pk),
    )
    assert left == [2, True]
    page.evaluate("window.go()")
    expect(page.locator(".message.assistant")).to_contain_text("Sleep well.")
    expect(page.get_by_role("button", name="Answer again")).to_be_enabled()
    page.locator(f"#conversations a[href$='{talk.pk}']").click()
    expect(page.locator(".message.assistant")).to_contain_text("Hello to you.")
    page.evaluate("async (id) => (await import('#octavo/chat.js')).session.forget(id)", str(talk.pk))
    expect(page.get_by_text("was deleted, in another tab")).to_be_visible()
    field.press("Enter")
    expect(saying).to_contain_text("Your text stays here.")
    expect(field).to_have_value("And then?")
    # Until it cannot be asked back: a day later the next page keeps nothing of it.
    talk.deleted_at = timezone.now()
    talk.save()
    kept = f"Object.keys(localStorage).filter((name) => name.endsWith('{talk.pk}')).length"
    page.goto(f"/t/{team.tenant.slug}/")
    page.locator("#composer[data-ready]").wait_for()
    assert page.evaluate(kept) > 0
    page.evaluate(
        """() => {
          const name = Object.keys(localStorage).find((one) => one.startsWith("octavo:gone:"));
          const made = Object.entries(JSON.parse(localStorage[name])).map(([id, at]) => [id, at - 25 * 3600000]);
          localStorage[name] = JSON.stringify(Object.fromEntries(made));
        }"""
    )
    page.reload()
    page.locator("#composer[data-ready]").wait_for()
    assert page.evaluate(kept) == 0
    assert errors == []


def test_a_question_that_is_refused_comes_back_before_what_has_been_written_since(
    shown: BrowserContext, team: Team
) -> None:
    asked: list[tuple[WebSocketRoute, str]] = []

    def server(socket: WebSocketRoute) -> None:
        def hear(message: str | bytes) -> None:
            frame = json.loads(message)
            if frame["type"] == "response.create":
                asked.append((socket, frame["event_id"]))

        socket.on_message(hear)

    shown.route_web_socket("**/*", server)
    talk = a_chat(team.member, "Hello", "Hello to you.")
    page = opened(shown, f"/t/{team.tenant.slug}/c/{talk.pk}")
    page.locator("#input").fill("The first")
    page.locator("#input").press("Enter")
    page.locator("#input").fill("The second")
    page.wait_for_timeout(100)
    ((socket, event_id),) = asked
    error = {"type": "error", "event_id": event_id, "code": "rate_limited", "message": "Wait.", "retryable": True}
    socket.send(json.dumps(error))
    expect(page.locator("#input")).to_have_value("The first\n\nThe second")
    page.reload()
    expect(page.locator("#input")).to_have_value("The first\n\nThe second")


def test_what_another_tab_writes_for_a_new_chat_stays_there_when_this_one_begins(
    shown: BrowserContext, team: Team
) -> None:
    first, second = (opened(shown, f"/t/{team.tenant.slug}/") for _ in range(2))
    first.locator("#input").fill("The first")
    first.locator("#input").press("Enter")
    second.locator("#input").fill("The second")
    expect(first.locator("#input")).to_have_value("The second")
    first.evaluate(
        """async () => {
          const { session } = await import('#octavo/chat.js');
          for (const { response } of session.underway.values())
            response.onAccepted({ conversation_id: "01a22bac-c414-73ed-bd07-2fa45305072c" });
        }"""
    )
    expect(first.locator("#input")).to_have_value("")
    second.evaluate("new Promise((done) => setTimeout(done, 100))")
    expect(second.locator("#input")).to_have_value("The second")


@pytest.mark.parametrize(
    "shown",
    [{"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}],
    indirect=True,
)
def test_on_a_phone_the_sidebar_is_a_sheet_by_touch_and_enter_breaks_the_line(
    shown: BrowserContext, team: Team
) -> None:
    talk = a_chat(team.member, "Hello", "Hello to you.")
    page = opened(shown, f"/t/{team.tenant.slug}/c/{talk.pk}")
    sidebar = page.locator("#sidebar")
    field = page.locator("#input")
    field.tap()
    field.press_sequentially("one")
    field.press("Enter")
    field.press_sequentially("two")
    expect(field).to_have_value("one\ntwo")
    assert float(field.evaluate("e => parseFloat(getComputedStyle(e).fontSize)")) >= 16, "or a phone zooms into it"
    swipe = """([from, to, y]) => {
      const touch = (x) => new Touch({ identifier: 1, target: document.querySelector("#log"), clientX: x, clientY: y });
      const tell = (kind, x, touches) => document.querySelector("#log").dispatchEvent(
        new TouchEvent(kind, { bubbles: true, touches, changedTouches: [touch(x)] }));
      tell("touchstart", from, [touch(from)]);
      tell("touchend", to, []);
    }"""
    page.evaluate(swipe, [40, 220, 300])
    expect(sidebar).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.querySelector('main').inert")
    assert page.evaluate("document.querySelector('#sidebar').contains(document.activeElement)")
    page.evaluate(swipe, [220, 40, 300])
    expect(sidebar).not_to_be_in_viewport()
    assert not page.evaluate("document.querySelector('main').inert")
    small = page.evaluate(
        """() => [...document.querySelectorAll("main button, main a.icon-button, main summary")].filter((one) => {
          const { width, height } = one.getBoundingClientRect();
          return width && (height < 44 || width < 44);
        }).map((one) => one.outerHTML.slice(0, 90))"""
    )
    assert small == [], "what a finger touches has 44 px"
    # Wide enough for 400 % of zoom.
    page.set_viewport_size({"width": 320, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.get_by_role("button", name="Sidebar").tap()
    page.locator("[popovertarget=account-menu]").tap()
    page.get_by_role("button", name="Find anything").tap()
    expect(page.get_by_role("option").first).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
