"""A real Chromium against the running product. Whatever the page complains about on its console fails the test.

Without Chromium these tests are skipped by name; with CI or OCTAVO_REQUIRE_BROWSER set they fail instead.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.stack import Stack, wait_for

PATHS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking"]
# Long enough to be reloaded or stopped in the middle, short enough to wait for.
ANSWER_TOKENS = 640
# The demo team whose member asks here.
TEAM = 3
DEADLINE_MS = 60_000
# The engine, the web server and the browser share two cores with whatever other tests do.
expect.set_options(timeout=20_000)


def chromium() -> str | None:
    given = os.environ.get("OCTAVO_CHROMIUM")
    return given or next((path for name in PATHS if (path := shutil.which(name))), None)


# A package's fixture and not a session's: while Playwright's loop lives, no asyncio test can run in this thread.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        required = os.environ.get("CI") == "true" or os.environ.get("OCTAVO_REQUIRE_BROWSER")
        assert not required, "there is no Chromium; install it, or name one in OCTAVO_CHROMIUM"
        pytest.skip("there is no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def product(stack: Stack) -> Iterator[Stack]:
    """The running product, with answers of one demo team bounded for the time of these tests."""
    slug = stack.demo["tenants"][TEAM]["slug"]

    def limit(tokens: int | None) -> bool:
        of_team = "tenant_id = (SELECT id FROM tenants_tenant WHERE slug = ?)"
        with contextlib.closing(sqlite3.connect(stack.data / "db.sqlite3", timeout=20)) as database, database:
            done = database.execute(f"UPDATE limits_tenantlimits SET output_tokens = ? WHERE {of_team}", (tokens, slug))
        return done.rowcount == 1

    # A team has its row once somebody has asked for its limits, as the product does by itself a little after its start.
    wait_for(lambda: limit(ANSWER_TOKENS))
    yield stack
    limit(None)


def said(line: ConsoleMessage) -> str:
    """With the address: of what could not be loaded the browser says the status only."""
    return f"{line.text} ({line.location.get('url', '')})"


@pytest.fixture
def complaints() -> Iterator[list[str]]:
    """What pages wrote to their consoles as errors, violations of the content policy among them."""
    found: list[str] = []
    yield found
    assert not found, f"the browser complained: {found}"


@pytest.fixture
def context(
    browser: Browser, product: Stack, complaints: list[str], request: pytest.FixtureRequest
) -> Iterator[BrowserContext]:
    """A fresh profile. `pytest.mark.parametrize("context", [{…}], indirect=True)` gives it other options."""
    options: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, **getattr(request, "param", {})}
    context = browser.new_context(base_url=product.url, **options)
    context.set_default_timeout(DEADLINE_MS)

    def listen(page: Page) -> None:
        page.on("console", lambda line: complaints.append(said(line)) if line.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))

    context.on("page", listen)
    yield context
    context.close()


class Chat:
    """The workspace as a reader works it."""

    def __init__(self, page: Page, product: Stack, team: int = TEAM) -> None:
        self.page = page
        self.product = product
        self.team = product.demo["tenants"][team]

    def log_in(self, path: str = "/", account: dict[str, str] | None = None) -> Chat:
        account = account or self.team["member"]
        self.page.goto(f"/accounts/login/?next={path}")
        self.page.get_by_label("Email").fill(account["email"])
        self.page.get_by_label("Password").fill(account["password"])
        self.page.get_by_role("button", name="Log in").click()
        return self

    def ready(self) -> Chat:
        """Until the page's own scripts have run: what is imported from them before is half set up."""
        self.page.locator("#composer[data-ready]").wait_for()
        return self

    def ask(self, text: str) -> Chat:
        field = self.field
        field.fill(text)
        field.press("Control+Enter")  # sends on touch screens too, where Enter alone breaks the line
        self.page.wait_for_url("**/c/*")
        return self

    @property
    def field(self) -> Any:
        """Where a message is written, once the page's scripts listen to it."""
        return self.ready().page.get_by_role("textbox", name="Message")

    @property
    def answer(self) -> Any:
        return self.page.locator(".message.assistant").last

    def wait_for_text(self, characters: int = 20) -> str:
        """Until the newest answer has so many characters and is still growing, and then what it has."""
        self.page.wait_for_function(
            "n => (document.querySelector('.message.assistant:last-child .text')?.textContent ?? '').length >= n",
            arg=characters,
        )
        assert self.status() == "running", "the answer was over before it could be met in the middle"
        return self.raw()

    def status(self) -> str:
        return str(self.answer.get_attribute("data-status"))

    def wait_for_end(self) -> str:
        self.page.wait_for_function(
            "() => !['sending', 'queued', 'running'].includes("
            "document.querySelector('.message.assistant:last-child')?.dataset.status ?? 'sending')"
        )
        return self.raw()

    def raw(self) -> str:
        """The newest answer's text as it came, not as it is rendered."""
        return str(
            self.page.evaluate(
                "async () => { const { log } = await import('#octavo/chat.js');"
                " return [...log.views.keys()].at(-1).text; }"
            )
        )

    def stored(self) -> dict[str, Any]:
        """The newest message as the server has it in its database."""
        conversation = self.page.url.rpartition("/")[2]
        path = f"/api/t/{self.team['slug']}/conversations/{conversation}"
        return dict(self.page.evaluate("async (path) => (await (await fetch(path)).json()).messages.at(-1)", path))

    def usage(self) -> dict[str, Any]:
        """Of the newest answer, once the recorder has written it, which is a moment after the page has seen its end."""
        return dict(wait_for(lambda: self.stored()["usage"]))


@pytest.fixture
def chat(context: BrowserContext, product: Stack) -> Chat:
    return Chat(context.new_page(), product)


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> Callable[[Page], None]:
    """Keeps what a page looks like under test-artifacts, for people to look at."""

    def take(page: Page, name: str = "") -> None:
        folder = Path("test-artifacts")
        folder.mkdir(exist_ok=True)
        page.screenshot(path=folder / f"{request.node.name.split('[')[0]}{name}.png")

    return take
