"""A team's dashboard in a browser: its charts by mouse, finger and keyboard, and what runs now, kept up to date.

Pages come from this process (served.py), so the figures are the test's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.cache import cache
from playwright.sync_api import Browser, BrowserContext, Page, expect

from chatapp.audit.models import AuditEntry
from chatapp.chat.services import ask
from chatapp.limits.models import TenantLimits
from chatapp.usage.rollup import roll_up
from tests.browser.served import ORIGIN, Served, beside_playwright
from tests.browser.test_tokens import contrast
from tests.chat.conftest import ScriptedWorker, Team, server, strangers, team, worker
from tests.tenants.people import log_in
from tests.usage.conftest import use

__all__ = ["beside_playwright", "server", "strangers", "team", "worker"]

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.django_db]

PAGE = "/t/acme/admin/"
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def context(browser: Browser, team: Team) -> Iterator[BrowserContext]:
    """The owner's browser in Berlin, which does not wait for what it asks again."""
    cache.clear()
    context = browser.new_context(
        base_url=ORIGIN, viewport={"width": 1280, "height": 900}, timezone_id="Europe/Berlin", color_scheme="light",
        reduced_motion="reduce", has_touch=True,
    )  # fmt: skip
    context.set_default_timeout(20_000)
    yield context
    context.close()


@pytest.fixture
def served(context: BrowserContext, team: Team) -> Served:
    served = Served(context)
    served.client = log_in(team.owner)
    served.client.cookies["zone"] = "Europe/Berlin"
    return served


@pytest.fixture
def page(context: BrowserContext, served: Served) -> Page:
    return context.new_page()


def test_charts_are_read_by_mouse_finger_and_keyboard_and_lead_to_their_days(
    page: Page, team: Team, picture: Callable[..., None]
) -> None:
    noon = datetime.now(BERLIN).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)
    for days in range(6):
        use(team.tenant, noon - timedelta(days=days), prompt_tokens=1000 * (days + 1), cached_tokens=400)
    use(team.tenant, noon, state="failed", error_code="engine_fault", prompt_tokens=0, cached_tokens=0, output_tokens=0)
    roll_up()
    page.goto(PAGE)
    tokens = page.locator("figure").filter(has=page.locator("[data-chart=tokens]"))
    chart = tokens.get_by_role("slider", name="Tokens", exact=True)
    expect(chart).to_have_attribute("aria-valuetext", "Arrow keys read the values")
    # By keyboard: the first key enters at the newest day, today, when nothing was asked.
    chart.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    said = chart.get_attribute("aria-valuetext") or ""
    assert f"{noon:%b} {noon.day}, {noon.year}: Output 21, Prompt, computed 600, Prompt, from memory 400 tokens" in said
    expect(tokens.locator(".plot-value").first).to_have_text("21")
    # Charts of one page move their cursors together.
    errors = page.locator("figure").filter(has=page.locator("[data-chart=errors]"))
    expect(errors.locator(".plot-value").first).to_have_text("1")
    picture(page, "-cursor")
    page.keyboard.press("Home")
    assert f"{noon - timedelta(days=5):%b} {(noon - timedelta(days=5)).day}" in str(
        chart.get_attribute("aria-valuetext")
    )
    page.keyboard.press("Escape")
    expect(tokens.locator(".plot-value").first).to_be_empty()
    # By mouse, and by finger.
    box = tokens.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 2, box["y"] + 20)
    expect(tokens.locator(".plot-value").nth(1)).to_have_text("5,600")
    page.touchscreen.tap(box["x"] + box["width"] - 4, box["y"] + 20)
    expect(tokens.locator(".plot-value").nth(1)).to_have_text("0")
    # The same as a table, which follows what it is given and can be scrolled by keyboard.
    tokens.get_by_text("Show as a table").click()
    rows = tokens.locator("tbody tr")
    expect(rows).to_have_count(7)
    expect(rows.first.locator("td")).to_have_text(["21", "5,600", "400"])
    # A series that is not shown leaves the others where they are, and the last one stays.
    for name in ("Output", "Prompt, computed", "Prompt, from memory"):
        tokens.get_by_role("button", name=name).click()
    pressed = [button.get_attribute("aria-pressed") for button in tokens.locator(".plot-legend button").all()]
    assert pressed == ["false", "false", "true"]
    # Another theme is other colours, at once: of bars too.
    before = tokens.locator("canvas").evaluate("canvas => canvas.toDataURL()")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.wait_for_function(
        "before => document.querySelector('.plot canvas').toDataURL() !== before", arg=before
    )  # fmt: skip
    # Days that are chosen by keyboard are a page of their own.
    chart.focus()
    for key in ("End", "ArrowLeft", "Shift+ArrowLeft"):
        page.keyboard.press(key)
    with page.expect_navigation():
        page.keyboard.press("Enter")
    first, last = (noon - timedelta(days=1)).date(), noon.date()
    assert f"period=custom&from={first}&to={last}" in page.url
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("() => document.querySelector('.plot canvas').clientWidth < 390")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    picture(page, "-phone")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_in_the_systems_own_colours_charts_are_drawn_for_the_systems_ground(
    page: Page, team: Team, theme: str, picture: Callable[..., None]
) -> None:
    """Whatever theme was chosen here: a high-contrast theme has its own ground, and bars keep apart on it."""
    page.emulate_media(forced_colors="active", color_scheme="dark" if theme == "light" else "light")
    page.add_init_script(f"localStorage.setItem('octavo:theme', '{theme}')")
    noon = datetime.now(BERLIN).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)
    for days in range(3):
        use(team.tenant, noon - timedelta(days=days), prompt_tokens=1000 * (days + 1), cached_tokens=400)
    roll_up()
    page.goto(PAGE)
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    tokens = page.locator("figure").filter(has=page.locator("[data-chart=tokens]"))
    tokens.locator("canvas").wait_for()
    found = tokens.evaluate(
        """(figure) => {
          const point = new OffscreenCanvas(1, 1).getContext("2d");
          const numbers = (colour) => {
            point.fillStyle = colour;
            point.fillRect(0, 0, 1, 1);
            return [...point.getImageData(0, 0, 1, 1).data].slice(0, 3);
          };
          const probe = document.body.appendChild(document.createElement("i"));
          probe.style.color = "Canvas";
          const ground = numbers(getComputedStyle(probe).color);
          probe.style.color = "CanvasText";
          const text = numbers(getComputedStyle(probe).color);
          const canvas = figure.querySelector("canvas");
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const painted = new Set();
          for (let at = 0; at < data.length; at += 4)
            if (data[at + 3] === 255) painted.add(data.slice(at, at + 3).join());
          const swatches = [...figure.querySelectorAll(".plot-swatch")].map((swatch) =>
            numbers(getComputedStyle(swatch).backgroundColor));
          return { ground, text, painted: [...painted], swatches };
        }"""
    )
    tokens.scroll_into_view_if_needed()
    picture(page, f"-{theme}")
    ground, text = found["ground"], found["text"]
    assert ",".join(map(str, text)) in found["painted"], "what is written at the axes"
    assert len({tuple(swatch) for swatch in found["swatches"]}) == 3
    for swatch in found["swatches"]:
        assert ",".join(map(str, swatch)) in found["painted"], "the legend says which bar is which"
        assert contrast(*("#" + bytes(map(int, colour)).hex() for colour in (swatch, ground))) >= 3, "WCAG 2.2, 1.4.11"


def test_what_runs_now_comes_by_itself_and_is_stopped_on_the_page(
    page: Page, team: Team, worker: ScriptedWorker
) -> None:
    page.clock.install()
    page.goto(PAGE)
    running = page.locator("#running")
    expect(running).to_contain_text("Nothing is being answered at the moment")
    generation = ask(access=team.member, text="A long story")
    page.clock.run_for(3100)
    expect(running).to_contain_text("Waiting")
    expect(page.locator("#running-count")).to_have_text("1")
    worker.begin("Once")
    stop = running.get_by_role("button", name="Stop the answer to member@acme.test")
    stop.focus()
    page.clock.run_for(3100)
    expect(running).to_contain_text("Answering")
    expect(stop).to_be_focused()
    stop.click()
    expect(running).to_contain_text("Stopping")
    expect(stop).to_be_disabled()
    expect(page.locator(".toast")).to_have_text("The answer is being stopped. What it has said so far is kept.")
    assert page.url == f"{ORIGIN}{PAGE}", "without leaving the page"
    assert AuditEntry.objects.get(action="answer.stopped").object_id == str(generation.pk)
    # A server that is away is said so, and what was there stays.
    page.context.route("**/admin/running", lambda route: route.abort())
    page.clock.run_for(3100)
    expect(page.locator("#running-lost")).to_be_visible()
    expect(running).to_contain_text("Stopping")
    page.reload()
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator(".messages")).to_have_count(0)


def test_a_stop_that_failed_says_why_and_can_be_tried_again(
    page: Page, served: Served, team: Team, settings: Any
) -> None:
    ask(access=team.member, text="A long story")
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    page.goto(PAGE)
    stop = page.locator("#running").get_by_role("button", name="Stop the answer to member@acme.test")
    stop.click()
    expect(page.locator(".toast")).to_have_text(
        "That was not done. This answer cannot be stopped at the moment. Try again."
    )
    expect(stop).to_be_enabled()
    # Of somebody who has been logged out meanwhile the page asks no more.
    served.client.logout()
    stop.click()
    expect(page.locator(".toast")).to_contain_text("You may not see this any more. Log in again.")
    expect(page.locator("#running-lost")).to_have_text("You may not see this any more. Log in again.")


def test_a_server_that_is_silent_is_said_to_be_so(page: Page, team: Team) -> None:
    page.add_init_script("AbortSignal.timeout = () => AbortSignal.abort(new DOMException('late', 'TimeoutError'))")
    page.clock.install()
    page.goto(PAGE)
    page.clock.run_for(3100)
    expect(page.locator("#running-lost")).to_contain_text("The server does not answer")


@pytest.mark.parametrize("width", [390, 1280])
def test_stop_is_in_sight_on_a_phone_and_limits_are_read_line_by_line(
    page: Page, team: Team, width: int, picture: Callable[..., None]
) -> None:
    ask(access=team.member, text="A long story")
    TenantLimits.objects.filter(tenant=team.tenant).update(tokens_per_month=1_234_567_890)
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(PAGE)
    frame, button = page.locator("#running .table"), page.locator("#running button")
    expect(button).to_be_visible()
    assert frame.evaluate("frame => frame.scrollWidth <= frame.clientWidth")
    assert button.evaluate("button => button.getBoundingClientRect().right <= innerWidth")
    line = page.locator("h1").evaluate(
        "() => parseFloat(getComputedStyle(document.querySelector('.meters')).lineHeight)"
    )
    tabs = page.locator("nav.tabs")
    assert tabs.evaluate("tabs => tabs.clientHeight") < 2 * line, "in one line, which scrolls"
    expect(tabs.locator("[aria-current]")).to_be_in_viewport(ratio=1)
    for part in page.locator(".meters .name, .meters .number").all():
        assert part.evaluate("part => part.getBoundingClientRect().height") < 1.5 * line, part.inner_text()
    expect(page.locator(".meters .number").first).to_contain_text("of 1,234,567,890 tokens")
    picture(page, f"-{width}")
    page.context.unroute("**/admin/running")
    page.clock.run_for(6100)
    expect(page.locator("#running-lost")).to_be_hidden()
