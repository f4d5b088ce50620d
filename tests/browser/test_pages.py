"""What the pages do beside the main way: other widths and themes, errors, tabs, bad connections, hostile text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Chat
from tests.browser.test_journey import LONG

pytestmark = [pytest.mark.browser, pytest.mark.long]

Picture = Callable[..., None]

HOSTILE = """
<script>window.hit = 1</script> <img src=x onerror="window.hit = 1"> <svg onload="window.hit = 1"></svg>

[a](javascript:window.hit=1) [b](JaVaScRiPt&#58;window.hit=1) [c](data:text/html,<script>window.hit=1</script>)
[d](vbscript:x) [e](/accounts/logout/) [fine](https://example.org/page "a title")
![tracked](https://example.org/pixel.png) ![inline](data:image/svg+xml;base64,PHN2Zz48L3N2Zz4=)

```html"onmouseover="window.hit=1
<b onclick="window.hit = 1">code</b>
```

| <i onclick=hit> | [x](javascript:hit) |
|-----------------|--------------------:|
| 1               | 2                   |
"""


def overflow(page: Page) -> int:
    return int(page.evaluate("() => document.documentElement.scrollWidth - innerWidth"))


def test_a_wrong_password_is_said_to_be_wrong_and_nothing_more(chat: Chat, complaints: list[str]) -> None:
    page = chat.log_in(account={**chat.team["member"], "password": "not the password"}).page
    expect(page.get_by_role("alert")).to_contain_text("No account has this address and this password")
    assert "/accounts/login/" in page.url
    known = page.get_by_role("alert").inner_text()
    chat.log_in(account={"email": "nobody@nowhere.example", "password": "not the password"})
    assert page.get_by_role("alert").inner_text() == known
    assert ["400" in complaint for complaint in complaints] == [True, True]
    complaints.clear()  # Chromium reports every page with an error status


@pytest.mark.parametrize("context", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_no_page_on_a_phone_begins_under_the_sidebar(chat: Chat) -> None:
    """A watcher looks at every frame that is drawn, from the first on."""
    page = chat.page
    page.add_init_script(
        "window.seen = 0; (function look() { const bar = document.querySelector('#sidebar');"
        " if (bar && getComputedStyle(bar).visibility === 'visible')"
        " seen = Math.max(seen, bar.getBoundingClientRect().right); requestAnimationFrame(look); })()"
    )
    slug = chat.team["slug"]
    chat.log_in(f"/t/{slug}/admin/settings", chat.team["admin"])
    for path in (f"/t/{slug}/admin/settings", f"/t/{slug}/admin/members", f"/t/{slug}/"):
        page.goto(path)
        page.wait_for_timeout(300)
        assert page.evaluate("seen") <= 0, path
        page.get_by_role("button", name="Sidebar").click()
        page.wait_for_function("() => seen > 200")


@pytest.mark.parametrize("context", [{"viewport": {"width": 390, "height": 844}, "has_touch": True}], indirect=True)
def test_a_phone_shows_the_column_and_the_sidebar_as_a_sheet(chat: Chat, picture: Picture) -> None:
    page = chat.log_in().page
    sidebar = page.locator("#sidebar")
    expect(sidebar).not_to_be_in_viewport()
    chat.ask("Write a Python function that reverses a string, and a table of three examples.")
    chat.wait_for_end()
    assert overflow(page) <= 0
    picture(page)
    page.get_by_role("button", name="Sidebar").click()
    expect(sidebar).to_be_in_viewport(ratio=1)
    picture(page, "-sheet")
    page.keyboard.press("Escape")
    expect(sidebar).not_to_be_in_viewport()


def test_the_theme_is_chosen_and_kept(chat: Chat, picture: Picture) -> None:
    page = chat.log_in().page
    background = "() => getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(background)
    page.locator("[popovertarget=account-menu]").click()
    page.get_by_role("button", name="Dark").click()
    expect(page.get_by_role("button", name="Dark")).to_have_attribute("aria-pressed", "true")
    dark = page.evaluate(background)
    assert dark != light
    page.reload()
    assert page.evaluate(background) == dark
    picture(page)
    page.locator("[popovertarget=account-menu]").click()
    page.get_by_role("button", name="Auto").click()
    assert page.evaluate(background) == light
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(background) == dark


def test_a_second_tab_opened_in_the_middle_shows_the_same_text(chat: Chat) -> None:
    """P1."""
    chat.log_in().ask(LONG)
    chat.wait_for_text()
    second = Chat(chat.page.context.new_page(), chat.product)
    second.page.goto(chat.page.url)
    text = chat.wait_for_end()
    assert second.wait_for_end() == text
    rendered = "() => document.querySelector('.message.assistant:last-child .text').innerHTML"
    assert second.page.evaluate(rendered) == chat.page.evaluate(rendered)


def test_an_answer_goes_on_while_another_conversation_is_shown(chat: Chat) -> None:
    """P2: also back and forward lead where they should."""
    page = chat.log_in().page
    chat.ask("Say hello.")
    chat.wait_for_end()
    first = page.url
    page.get_by_role("link", name="New chat").first.click()
    chat.ask(LONG)
    before = chat.wait_for_text()
    second = page.url
    running = page.locator(f"#conversations a[href='{second.removeprefix(chat.product.url)}'] .dot")
    expect(running).to_be_visible()
    page.locator(f"#conversations a[href='{first.removeprefix(chat.product.url)}']").click()
    expect(page.locator(".message.user .text")).to_have_text("Say hello.")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    page.go_back()
    page.wait_for_url(second)
    assert chat.wait_for_end().startswith(before)
    assert chat.status() in ("completed", "incomplete")
    expect(running).to_have_count(0)
    page.go_forward()
    expect(page.locator(".message.user .text")).to_have_text("Say hello.")


def test_a_broken_connection_comes_back_and_brings_the_rest(chat: Chat) -> None:
    chat.log_in().ask(LONG)
    before = chat.wait_for_text()
    breaking = (
        "async () => { const socket = (await import('#octavo/chat.js')).octavo.connection;"
        " if (socket.state !== 'open') return false; socket.socket.close(); return true; }"
    )
    for _ in range(3):
        chat.page.wait_for_function(breaking)
    text = chat.wait_for_end()
    assert text.startswith(before)
    chat.page.reload()
    assert chat.wait_for_end() == text


def test_an_answer_that_falls_silent_is_resumed(chat: Chat) -> None:
    """P9: everything that came was lost, the connection looks well, and no event tells that the answer has ended."""
    page = chat.log_in().page
    chat.ask(LONG)
    chat.wait_for_text()
    page.evaluate(
        "async () => { const socket = (await import('#octavo/chat.js')).octavo.connection;"
        " window.hear = socket.onFrame; socket.onFrame = () => {}; }"
    )
    before = chat.raw()
    chat.product.wait_idle()
    assert chat.raw() == before
    page.evaluate("async () => { (await import('#octavo/chat.js')).octavo.connection.onFrame = window.hear; }")
    assert chat.wait_for_end().startswith(before)
    assert chat.status() in ("completed", "incomplete")


def test_a_draft_survives_a_reload_and_belongs_to_its_conversation(chat: Chat) -> None:
    page = chat.log_in().page
    field = chat.field
    field.press_sequentially("one")
    field.press("Shift+Enter")
    field.press_sequentially("two")
    page.reload()
    expect(field).to_have_value("one\ntwo")
    field.press("Enter")
    page.wait_for_url("**/c/*")
    expect(field).to_have_value("")
    expect(page.locator(".message.user .text")).to_have_text("one\ntwo")
    field.fill("later")
    page.get_by_role("link", name="New chat").first.click()
    expect(field).to_have_value("")
    page.go_back()
    expect(field).to_have_value("later")
    chat.page.keyboard.press("Escape")
    chat.wait_for_end()


def test_what_is_written_before_the_scripts_have_come_is_kept(chat: Chat) -> None:
    page = chat.log_in().page
    chat.field.fill("")
    waiting: list[Route] = []
    page.route("**/js/composer*.js", lambda route: waiting.append(route))
    page.reload(wait_until="commit")
    page.get_by_role("textbox", name="Message").press_sequentially("early")
    page.wait_for_timeout(200)
    assert waiting
    waiting[0].continue_()
    expect(chat.field).to_have_value("early")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_a_stop_before_the_first_token_stops(chat: Chat) -> None:
    """P3."""
    page = chat.log_in().page
    field = chat.field
    field.fill(LONG)
    field.press("Enter")
    field.press("Escape")
    chat.wait_for_end()
    assert chat.status() == "cancelled"
    chat.product.wait_idle()
    page.reload()
    assert chat.status() == "cancelled"


def test_a_message_that_is_too_long_is_not_sent_and_not_lost(chat: Chat) -> None:
    page = chat.log_in().page
    field = chat.field
    field.fill("word " * 20_000)
    expect(page.locator(".limit")).to_contain_text("too long to send")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    field.press("Enter")
    expect(page.locator(".message")).to_have_count(0)
    assert len(field.input_value()) == 100_000


def test_a_message_longer_than_the_context_is_refused_with_its_numbers(chat: Chat) -> None:
    page = chat.log_in().page
    chat.ask("a b c d e f " * 3_000)
    chat.wait_for_end()
    assert chat.status() == "failed"
    assert len(re.findall(r"\d[\d,]{3,}", chat.answer.locator(".notice").inner_text())) >= 2
    # Asked again it would be as long again: it can be edited, or left for a new chat.
    expect(page.get_by_role("button", name="Ask again")).to_have_count(0)
    expect(chat.answer.locator(".notice").get_by_role("button", name="New chat")).to_be_visible()
    chat.answer.locator(".notice").get_by_role("button", name="Edit").click()
    expect(page.locator(".message.user textarea")).to_have_value("a b c d e f " * 3_000)


def test_markdown_of_a_hostile_answer_is_inert(chat: Chat) -> None:
    """P14: no script, no handler, no script's link, no request to anywhere."""
    page = chat.log_in().ready().page
    asked: list[str] = []
    # The page's own list of conversations may be on its way.
    own = f"/api/t/{chat.team['slug']}/conversations"
    page.on("request", lambda request: None if request.url.endswith(own) else asked.append(request.url))
    draw = """async ([source, live]) => {
      const { MarkdownView } = await import('#octavo/markdown.js');
      const box = document.body.appendChild(document.createElement('section'));
      const view = new MarkdownView(box);
      const step = live ? 7 : source.length;
      for (let at = step; at < source.length + step; at += step) view.update(source.slice(0, at), live);
      view.update(source);
      // Our own buttons wrap code and remember it; what came with the text is clicked.
      for (const element of box.querySelectorAll(':not(button)')) element.dispatchEvent(new Event('click'));
      const all = [...box.querySelectorAll('*')];
      return {
        tags: [...new Set(all.map((one) => one.localName))],
        handlers: all.flatMap((one) => one.getAttributeNames()).filter((name) => /^on|^style$/.test(name)),
        links: [...box.querySelectorAll('a')].map((one) => [one.getAttribute('href'), one.rel, one.target]),
        html: box.innerHTML,
      };
    }"""
    # Colours and formulas come with the first text that has them; from then on they are there at once.
    page.evaluate(draw, [HOSTILE, False])
    page.evaluate("async () => { await Promise.all([import('highlight.js'), import('temml')]); }")
    whole: dict[str, Any] = page.evaluate(draw, [HOSTILE, False])
    streamed: dict[str, Any] = page.evaluate(draw, [HOSTILE, True])
    assert streamed == whole
    assert not set(whole["tags"]) & {"script", "img", "iframe", "style", "form", "input", "object", "i", "b"}
    assert whole["handlers"] == []
    for href, rel, target in whole["links"]:
        assert href is None or href.startswith("https://example.org/")
        assert {"noopener", "nofollow"} <= set(rel.split())
        assert target == "_blank"
    assert any(href == "https://example.org/page" for href, _, _ in whole["links"])
    page.wait_for_timeout(300)
    assert page.evaluate("() => window.hit") is None
    assert [url for url in asked if "example.org" in url] == []


def test_code_is_coloured_and_copied(chat: Chat) -> None:
    page = chat.log_in().ready().page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    code = "def f(x):\n    return x * 2"
    page.evaluate(
        """async (source) => {
          const { MarkdownView } = await import('#octavo/markdown.js');
          const box = document.querySelector('#log').parentElement.appendChild(document.createElement('section'));
          box.className = 'markdown';
          new MarkdownView(box).update(source);
        }""",
        f"```python\n{code}\n```",
    )
    expect(page.locator(".code .hljs-keyword").first).to_have_text("def")
    page.locator(".code").get_by_role("button", name="Copy").click()
    expect(page.locator(".code").get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("() => navigator.clipboard.readText()") == code


def test_finished_blocks_keep_their_elements_while_an_answer_grows(chat: Chat) -> None:
    page = chat.log_in().ready().page
    text = "\n\n".join(f"Paragraph {n} with **bold**." for n in range(40))
    kept = page.evaluate(
        """async (text) => {
          const { MarkdownView } = await import('#octavo/markdown.js');
          const box = document.createElement('section');
          const view = new MarkdownView(box);
          view.update(text.slice(0, text.length / 2), true);
          const early = [...box.querySelectorAll('p')].slice(0, -1);
          for (let at = text.length / 2; at <= text.length; at += 5) view.update(text.slice(0, at), true);
          view.update(text);
          return [early.length, early.filter((one) => box.contains(one)).length, box.querySelectorAll('p').length];
        }""",
        text,
    )
    assert kept[0] > 15
    assert kept[0] == kept[1]
    assert kept[2] == 40


def test_logging_out_ends_it_in_every_tab(chat: Chat, complaints: list[str]) -> None:
    """P12: the other tab says that it is logged out, and where to log in."""
    page = chat.log_in().page
    chat.field.wait_for()
    other = Chat(page.context.new_page(), chat.product)
    other.page.goto(page.url)
    other.field.wait_for()
    page.locator("[popovertarget=account-menu]").click()
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/accounts/login/**")
    page.goto(f"/t/{chat.team['slug']}/")
    assert "/accounts/login/" in page.url
    expect(other.page.locator("#banner")).to_contain_text("You are logged out")
    expect(other.page.locator("#banner").get_by_role("link", name="Log in")).to_be_visible()
    complaints.clear()  # Chromium reports what was refused since


def test_an_operator_sees_the_blocks_of_an_answer_while_it_runs(chat: Chat, picture: Picture) -> None:
    """The page counts used blocks, names the tenant, and sees them go when the answer has ended."""
    operator = chat.page.context.browser
    assert operator is not None
    context = operator.new_context(base_url=chat.product.url, viewport={"width": 1280, "height": 900})
    looking = Chat(context.new_page(), chat.product)
    complaints: list[str] = []
    looking.page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    looking.log_in("/admin/occupancy/", account=chat.product.demo["operator"])
    figure = looking.page.locator("#totals dd").first
    expect(figure).to_be_visible()
    chat.log_in().ask(LONG)
    chat.wait_for_text()
    used = "() => Number.parseInt(document.querySelector('#totals dd').textContent.replaceAll(',', '')) > 5"
    looking.page.wait_for_function(used)
    expect(looking.page.locator("#counts")).to_contain_text(chat.team["name"])
    looking.page.hover("#grid", position={"x": 20, "y": 20})
    expect(looking.page.locator("#hover")).to_contain_text("Block ")
    drawn = looking.page.evaluate(
        """() => {
          const canvas = document.querySelector('#grid');
          const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          const colours = new Set();
          for (let at = 0; at < data.length; at += 4) {
            if (data[at + 3] > 100) colours.add(data.slice(at, at + 3).join());
          }
          return colours.size;
        }"""
    )
    assert drawn > 1
    picture(looking.page)
    chat.page.keyboard.press("Escape")
    looking.page.wait_for_function("() => document.querySelector('#totals dd').firstChild.textContent === '0'")
    looking.page.emulate_media(color_scheme="dark")
    looking.page.reload()
    expect(figure).to_be_visible()
    picture(looking.page, "-dark")
    assert not complaints, json.dumps(complaints)
    context.close()
